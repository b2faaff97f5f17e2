"""What an exported file says about itself: the same JSON in every format."""

import hashlib
import json
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta

import blockout
from blockout.limits import LARGEST_SIZE

FORMAT = 1
KEY = "blockout"
"""Where the JSON is: a metadata key in ONNX and safetensors, an extra file in a .pt2."""

CHECKSUM = "blockout_checksum"
"""A second key, for formats without their own checksum (.pt2 has one)."""

Channels = tuple[float, float, float]
Positive = Annotated[float, Meta(gt=0)]


class ExportError(ValueError):
    """A network cannot be exported, or a file is not an intact export."""


def checksum(text: str, contents: Iterable[bytes | memoryview]) -> str:
    """Checksum of the JSON and the weights; it detects damage, not tampering.

    >>> checksum("{}", [b"weights"]) == checksum("{}", [b"wei", b"ghts"])
    True
    """
    digest = hashlib.sha256(text.encode())
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def require_checksum(found: str, expected: str | None) -> None:
    """Without an expected checksum, nothing is required: a tool that edits files may remove it."""
    if expected is not None and found != expected:
        raise ExportError(
            "is damaged: its contents do not match its checksum; copy or export it again. (If a "
            f"tool changed it on purpose, remove {CHECKSUM} from the metadata)"
        )


class About(msgspec.Struct, frozen=True):
    """What you need to classify images, apart from the network.

    >>> about = About(("ant", "bee"), 32, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    >>> About.from_json(about.to_json()) == about
    True
    """

    classes: Annotated[tuple[str, ...], Meta(min_length=2)]
    image_size: Annotated[int, Meta(ge=1, le=LARGEST_SIZE)]
    mean: Channels
    std: tuple[Positive, Positive, Positive]
    crop: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """The centred square that it sees, as a share of an image's shorter side."""
    architecture: dict[str, Any] | None = None
    """What ``from_description`` needs to build the network; only in files without a graph."""

    def to_json(self) -> str:
        """Readable for a programmer who does not have this library."""
        size = self.image_size
        described = {
            "format": FORMAT,
            "written_by": f"blockout {blockout.__version__}, torch {torch.__version__}",
            "input": f"images: float32, batch x 3 x {size} x {size}",
            "output": f"logits: float32, batch x {len(self.classes)}; softmax gives probabilities",
            "classes": self.classes,
            "preprocessing": {
                "channels": "RGB, upright by EXIF, transparency on white",
                "crop": "the centred square whose side is crop_share of the shorter side",
                "crop_share": self.crop,
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
        """Raises ExportError if ``to_json`` of this version did not write the text."""
        try:
            described = msgspec.json.decode(text)
            written = described["format"]
            if type(written) is int and written > FORMAT:
                raise ExportError(
                    f"was written by a newer blockout (format {written}; this version reads "
                    f"{FORMAT}): pip install --upgrade blockout"
                )
            if written != FORMAT:
                raise ValueError(f"expected format {FORMAT}, got {written!r}")
            seen = described["preprocessing"]
            values = {**seen, **described, "crop": seen.get("crop_share", 1.0)}
            return msgspec.convert(values, cls)
        except ExportError:
            raise
        except (
            msgspec.MsgspecError,  # no ValueError before msgspec 0.20
            ValueError, TypeError, KeyError, AttributeError, RecursionError,
        ) as error:  # fmt: skip
            raise ExportError(f"is damaged: its description is wrong ({error})") from error
