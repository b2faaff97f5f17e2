"""Images to train on: sources, decoding, augmentation, and the generated data set `shapes`."""

from blockout.data.config import DataConfig, DataError
from blockout.data.images import prepare
from blockout.data.load import ImageData, load
from blockout.data.splits import MemorySplit, Split
from blockout.data.streams import StreamSplit

__all__ = [
    "DataConfig",
    "DataError",
    "ImageData",
    "MemorySplit",
    "Split",
    "StreamSplit",
    "load",
    "prepare",
]
