"""Trunks, heads, and classifiers made of both."""

from blockout.models.building import build_model, build_trunk, from_description, restored
from blockout.models.classifier import ImageClassifier, count_features
from blockout.models.config import ModelConfig, PaperDefaults, paper_defaults, resolved
from blockout.models.efficientnet import EfficientNetLite
from blockout.models.features import FeatureExtractor, fast_features, weights_digest
from blockout.models.gradcam import grad_cam
from blockout.models.heads import Head
from blockout.models.inception import InceptionBN, SmallInception
from blockout.models.pretrained import Preprocessing, PretrainedTrunk, trunk_preprocessing
from blockout.models.trunks import FirstStages, Trunk, last_stages, stages

__all__ = [
    "EfficientNetLite",
    "FeatureExtractor",
    "FirstStages",
    "Head",
    "ImageClassifier",
    "InceptionBN",
    "ModelConfig",
    "PaperDefaults",
    "Preprocessing",
    "PretrainedTrunk",
    "SmallInception",
    "Trunk",
    "build_model",
    "build_trunk",
    "count_features",
    "fast_features",
    "from_description",
    "grad_cam",
    "last_stages",
    "paper_defaults",
    "resolved",
    "restored",
    "stages",
    "trunk_preprocessing",
    "weights_digest",
]
