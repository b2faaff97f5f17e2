"""`shapes`: generated 32x32 colour images with a known hierarchy, five groups of four classes.

A group is a kind of picture (solid shapes, rings, dots, strokes, patterns); a class is a variant of
it. Position, size, rotation, colours, shading and noise vary. Light on dark is as frequent as dark
on light, so the mean image of each class is grey and a linear classifier of pixels learns little.
Augmentation (mirroring, shifting) never turns one class into another.

Each drawing is a signed distance: negative inside, in units of the shape's radius.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float32, Int64, UInt8

SIZE = 32
TRAIN_PER_CLASS = 500
TEST_PER_CLASS = 100
NOISE = 0.12

Plane = Float32[np.ndarray, "images height width"]
Drawing = Callable[[Plane, Plane, np.random.Generator], Plane]


def generate(
    per_class: int, seed: int, part: int = 0
) -> tuple[UInt8[np.ndarray, "images 32 32 3"], Int64[np.ndarray, " images"]]:
    """Images and labels, class by class.

    The same arguments give the same images. `part` (0 training, 2 test) selects different ones.
    """
    images = [
        _render(draw, per_class, np.random.default_rng([seed, part, label]))
        for label, (_, _, draw) in enumerate(_CLASSES)
    ]
    return np.concatenate(images), np.arange(len(_CLASSES)).repeat(per_class)


def _render(draw: Drawing, count: int, rng: np.random.Generator) -> UInt8[np.ndarray, "n 32 32 3"]:
    """Draws images: pose, shape, two colours, shading, noise."""
    u, v, radius = _poses(count, rng)
    inside = np.clip(0.5 - draw(u, v, rng) * radius, 0, 1)[..., None]  # anti-aliased over one pixel
    back, front = _colours(count, rng)
    images = back + inside * (front - back) + _shading(count, rng)
    images += NOISE * rng.standard_normal(images.shape, dtype=np.float32)
    return (255 * np.clip(images, 0, 1) + 0.5).astype(np.uint8)


def _poses(count: int, rng: np.random.Generator) -> tuple[Plane, Plane, Plane]:
    """Each pixel's coordinates in the frame of its shape, and the shape's radius in pixels."""
    radius = _uniform(rng, count, 8.5, 12.5)
    turn = _uniform(rng, count, -np.pi, np.pi)
    slack = (SIZE / 2 - radius) * 0.8
    x = np.arange(SIZE, dtype=np.float32) - (SIZE - 1) / 2 - slack * _uniform(rng, count, -1, 1)
    y = np.arange(SIZE, dtype=np.float32) - (SIZE - 1) / 2 - slack * _uniform(rng, count, -1, 1)
    x, y = x / radius, y.transpose(0, 2, 1) / radius
    return np.cos(turn) * x + np.sin(turn) * y, np.cos(turn) * y - np.sin(turn) * x, radius


def _uniform(rng: np.random.Generator, count: int, low: float, high: float) -> Plane:
    return rng.uniform(low, high, (count, 1, 1)).astype(np.float32)


def _colours(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Background and foreground per image: the most different of three random pairs."""
    pairs = rng.random((2, 3, count, 3), dtype=np.float32)
    best = np.square(pairs[0] - pairs[1]).sum(-1).argmax(0)
    back, front = pairs[:, best, np.arange(count), None, None]
    return back, front


def _shading(count: int, rng: np.random.Generator) -> np.ndarray:
    """A gentle brightness gradient across each image."""
    ramp = np.linspace(-0.15, 0.15, SIZE, dtype=np.float32)
    across, down = _uniform(rng, count, -1, 1), _uniform(rng, count, -1, 1)
    return (across * ramp + down * ramp[:, None])[..., None]


def _polygon(corners: int) -> Drawing:
    def draw(u: Plane, v: Plane, rng: np.random.Generator) -> Plane:
        return np.hypot(u, v) * np.cos(_fold(u, v, corners)) - np.float32(np.cos(np.pi / corners))

    return draw


def _fold(u: Plane, v: Plane, sectors: int) -> Plane:
    """Each pixel's angle from the middle of its sector."""
    sector = np.float32(2 * np.pi / sectors)
    return np.mod(np.arctan2(v, u), sector) - sector / 2


def _star(u: Plane, v: Plane, rng: np.random.Generator) -> Plane:
    """Five points: ten copies of one straight edge from a tip (radius 1.1) to a notch (0.45)."""
    angle, rho = np.abs(_fold(u, v, 5)), np.hypot(u, v)
    tip = np.float32(1.1) * np.array([np.cos(np.pi / 5), np.sin(np.pi / 5)], np.float32)
    edge = tip - np.array([0.45, 0], np.float32)
    along, away = rho * np.cos(angle) - np.float32(0.45), rho * np.sin(angle)
    return (along * edge[1] - away * edge[0]) / np.hypot(*edge)


def _cross(u: Plane, v: Plane, rng: np.random.Generator) -> Plane:
    long, short = np.maximum(np.abs(u), np.abs(v)), np.minimum(np.abs(u), np.abs(v))
    return np.maximum(long - 1, short - np.float32(0.33))


def _rings(*radii: float, dot: float = 0.0, gap: float = 0.0) -> Drawing:
    """Circles with these radii, and a dot in the middle or a gap on one side."""

    def draw(u: Plane, v: Plane, rng: np.random.Generator) -> Plane:
        rho = np.hypot(u, v)
        distance = np.minimum.reduce([np.abs(rho - np.float32(r)) for r in radii]) - np.float32(0.1)
        if dot:
            distance = np.minimum(distance, rho - np.float32(dot))
        return np.maximum(distance, np.minimum(np.float32(gap) - np.abs(v), u)) if gap else distance

    return draw


def _dots(*places: tuple[float, float]) -> Drawing:
    """Discs at these places, each shifted a little at random."""

    def draw(u: Plane, v: Plane, rng: np.random.Generator) -> Plane:
        shifts = 0.1 * rng.standard_normal((2, len(places), len(u), 1, 1), dtype=np.float32)
        centres = zip(places, *shifts, strict=True)
        return np.minimum.reduce(
            [np.hypot(u - dx - x, v - dy - y) for (x, y), dx, dy in centres]
        ) - _uniform(rng, len(u), 0.2, 0.27)

    return draw


def _strokes(*segments: tuple[float, float, float, float]) -> Drawing:
    """Straight lines from (x0, y0) to (x1, y1) with round ends."""

    def draw(u: Plane, v: Plane, rng: np.random.Generator) -> Plane:
        return np.minimum.reduce([_to_segment(u, v, *s) for s in segments]) - np.float32(0.13)

    return draw


def _to_segment(u: Plane, v: Plane, x0: float, y0: float, x1: float, y1: float) -> Plane:
    ex, ey = np.float32(x1 - x0), np.float32(y1 - y0)
    du, dv = u - np.float32(x0), v - np.float32(y0)
    along = np.clip((du * ex + dv * ey) / (ex * ex + ey * ey), 0, 1)
    return np.hypot(du - along * ex, dv - along * ey)


def _pattern(wave: Callable[[Plane, Plane], Plane]) -> Drawing:
    """A pattern of about 3 to 4 periods over the whole image; inside where `wave` is positive."""

    def draw(u: Plane, v: Plane, rng: np.random.Generator) -> Plane:
        pace = _uniform(rng, len(u), 4.5, 6.0)
        return -wave(pace * u, pace * v) / pace

    return draw


_CLASSES: tuple[tuple[str, str, Drawing], ...] = (
    ("solids", "triangle", _polygon(3)),
    ("solids", "square", _polygon(4)),
    ("solids", "star", _star),
    ("solids", "plus", _cross),
    ("rings", "ring", _rings(0.9)),
    ("rings", "double ring", _rings(1.0, 0.55)),
    ("rings", "target", _rings(0.95, dot=0.3)),
    ("rings", "broken ring", _rings(0.9, gap=0.45)),
    ("dots", "two dots", _dots((-0.6, 0), (0.6, 0))),
    ("dots", "three dots", _dots((0.75, 0), (-0.375, 0.65), (-0.375, -0.65))),
    ("dots", "four dots", _dots((0.65, 0.65), (0.65, -0.65), (-0.65, 0.65), (-0.65, -0.65))),
    ("dots", "row of dots", _dots((-0.9, 0), (-0.0, 0), (0.9, 0))),
    ("strokes", "letter T", _strokes((-0.8, 0.8, 0.8, 0.8), (0, 0.8, 0, -1))),
    ("strokes", "letter V", _strokes((-0.7, 0.9, 0, -0.9), (0.7, 0.9, 0, -0.9))),
    ("strokes", "letter X", _strokes((-0.75, 0.75, 0.75, -0.75), (-0.75, -0.75, 0.75, 0.75))),
    (
        "strokes",
        "letter Z",
        _strokes((-0.7, 0.8, 0.7, 0.8), (0.7, 0.8, -0.7, -0.8), (-0.7, -0.8, 0.7, -0.8)),
    ),
    ("patterns", "stripes", _pattern(lambda u, v: np.sin(u))),
    ("patterns", "waves", _pattern(lambda u, v: np.sin(u + 1.2 * np.sin(v)))),
    ("patterns", "checks", _pattern(lambda u, v: np.sin(u) * np.sin(v))),
    ("patterns", "lattice", _pattern(lambda u, v: np.maximum(np.cos(u), np.cos(v)) - 0.6)),
)

GROUP_NAMES: tuple[str, ...] = tuple(dict.fromkeys(group for group, _, _ in _CLASSES))
CLASSES: tuple[str, ...] = tuple(name for _, name, _ in _CLASSES)
GROUPS: tuple[int, ...] = tuple(GROUP_NAMES.index(group) for group, _, _ in _CLASSES)
