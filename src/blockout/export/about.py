"""What an exported file says about itself, as the same JSON in every format."""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

import blockout

FORMAT = 1
LARGEST_IMAGE = 8192
KEY = "blockout"
"""Where the JSON stands: a key of ONNX's and of safetensors' metadata, an extra file of a .pt2."""

CHECKSUM = "blockout_checksum"
"""Beside the JSON, where the format itself has none (.pt2 has)."""

Channels = tuple[float, float, float]


class ExportError(ValueError):
    """A file cannot be exported, or is not what was exported; the message says what to do."""


def checksum(text: str, contents: Iterable[bytes | memoryview]) -> str:
    """Of what a file says about itself and of its weights; tells damage, not malice.

    >>> checksum("{}", [b"weights"]) == checksum("{}", [b"wei", b"ghts"])
    True
    """
    digest = hashlib.sha256(text.encode())
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def require_checksum(found: str, expected: str | None) -> None:
    """Without an expected one nothing is required: an editor of files may take it away."""
    if expected is not None and found != expected:
        raise ExportError(
            "is damaged: its contents do not match its checksum; copy or export it again. (If a "
            f"tool changed it on purpose, remove {CHECKSUM} from its metadata)"
        )


@dataclass(frozen=True)
class About:
    """What classifying takes beside the network.

    >>> about = About(("ant", "bee"), 32, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    >>> About.from_json(about.to_json()) == about
    True
    """

    classes: tuple[str, ...]
    image_size: int
    mean: Channels
    std: Channels
    architecture: dict[str, Any] | None = None
    """What ``from_description`` builds the network from; only where the file holds no graph."""

    def to_json(self) -> str:
        """Written for the programmer who meets the file without this library."""
        size = self.image_size
        described = {
            "format": FORMAT,
            "written_by": f"blockout {blockout.__version__}, torch {torch.__version__}",
            "input": f"images: float32, batch x 3 x {size} x {size}",
            "output": f"logits: float32, batch x {len(self.classes)}; softmax gives probabilities",
            "classes": self.classes,
            "preprocessing": {
                "channels": "RGB, upright by EXIF, transparency on white",
                "crop": "the largest centred square",
                "resize": "bilinear with antialiasing (Pillow), to image_size",
                "image_size": size,
                "scale": "(pixel / 255 - mean) / std",
                "mean": self.mean,
                "std": self.std,
            },
            "architecture": self.architecture,
        }
        return json.dumps(described, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> "About":
        """Raises ExportError where the text is not what ``to_json`` of this version writes."""
        try:
            described = json.loads(text)
            written = described["format"]
            if type(written) is int and written > FORMAT:
                raise ExportError(
                    f"was written by a newer blockout (format {written}, this one reads {FORMAT}): "
                    "pip install --upgrade blockout"
                )
            if written != FORMAT:
                raise ValueError(f"format {FORMAT} was expected, got {written!r}")
            return cls._checked(described)
        except ExportError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ExportError(
                f"is damaged: what it says about itself is wrong ({error})"
            ) from error

    @classmethod
    def _checked(cls, described: dict[str, Any]) -> "About":
        seen = described["preprocessing"]
        about = cls(
            tuple(described["classes"]), seen["image_size"], tuple(seen["mean"]),
            tuple(seen["std"]), described["architecture"],
        )  # fmt: skip
        if len(about.classes) < 2 or not all(isinstance(name, str) for name in about.classes):
            raise ValueError("classes must be two names or more")
        if type(about.image_size) is not int or not 1 <= about.image_size <= LARGEST_IMAGE:
            raise ValueError(f"image_size must be 1 to {LARGEST_IMAGE}, got {about.image_size!r}")
        for values in (about.mean, about.std):
            if len(values) != 3 or not all(math.isfinite(value) for value in values):
                raise ValueError(f"mean and std must be three numbers each, got {values}")
        if min(about.std) <= 0:
            raise ValueError(f"std must be positive, got {about.std}")
        return about
