"""Trunks, heads and the classifiers made of them."""

from blockout.models.building import build_model, build_trunk, from_description
from blockout.models.classifier import ImageClassifier, count_features
from blockout.models.config import ModelConfig, PaperDefaults, paper_defaults, resolved
from blockout.models.heads import Head
from blockout.models.inception import CompactInception, InceptionBN
from blockout.models.pretrained import Preprocessing, PretrainedTrunk, trunk_preprocessing

__all__ = [
    "CompactInception",
    "Head",
    "ImageClassifier",
    "InceptionBN",
    "ModelConfig",
    "PaperDefaults",
    "Preprocessing",
    "PretrainedTrunk",
    "build_model",
    "build_trunk",
    "count_features",
    "from_description",
    "paper_defaults",
    "resolved",
    "trunk_preprocessing",
]
