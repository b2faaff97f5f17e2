import numpy as np
import pytest

from blockout.data import shapes


def test_the_same_seed_gives_the_same_images_and_another_seed_or_part_others() -> None:
    images, labels = shapes.generate(3, seed=0)
    again, _ = shapes.generate(3, seed=0)
    assert np.array_equal(images, again)
    for seed, part in ((1, 0), (0, 2)):
        others, other_labels = shapes.generate(3, seed, part)
        assert np.array_equal(labels, other_labels)
        assert (images != others).mean() > 0.9


def test_there_are_five_groups_of_four_named_classes() -> None:
    assert len(shapes.GROUP_NAMES) == 5 and len(set(shapes.CLASSES)) == 20
    assert np.bincount(shapes.GROUPS).tolist() == [4] * 5
    assert shapes.GROUP_NAMES[shapes.GROUPS[shapes.CLASSES.index("star")]] == "solids"
    assert shapes.GROUP_NAMES[shapes.GROUPS[shapes.CLASSES.index("waves")]] == "patterns"


def test_every_class_has_the_number_of_images_asked_for() -> None:
    images, labels = shapes.generate(7, seed=3)
    assert np.bincount(labels).tolist() == [7] * 20
    assert images.shape == (140, 32, 32, 3) and images.dtype == np.uint8


def share_inside(name: str) -> float:
    """Mean share of pixels that a drawing covers, without colours and noise."""
    draw = dict(zip(shapes.CLASSES, (d for _, _, d in shapes._CLASSES), strict=True))[name]
    rng = np.random.default_rng(0)
    u, v, radius = shapes._poses(200, rng)
    return float((draw(u, v, rng) < 0).mean() / (np.pi * radius**2 / 32**2).mean())


@pytest.mark.parametrize(
    ("name", "area"),
    [
        ("triangle", 3 * np.sqrt(3) / 4),
        ("square", 2.0),
        ("plus", 4 * 0.33 * 2 - (2 * 0.33) ** 2),
        ("star", 10 * 0.5 * 1.1 * 0.45 * np.sin(np.pi / 5)),
        ("ring", 2 * np.pi * 0.9 * 0.2),
        ("double ring", 2 * np.pi * (1.0 + 0.55) * 0.2),
    ],
)
def test_a_drawing_covers_the_area_of_its_shape(name: str, area: float) -> None:
    # areas of the unit shapes by geometry; 5 % for the pixel grid and the image border
    assert share_inside(name) == pytest.approx(area / np.pi, rel=0.05)


def test_dots_are_as_many_as_the_name_says() -> None:
    one = np.pi * ((0.27**3 - 0.2**3) / (3 * 0.07))  # mean area of a dot
    for name, count in (("two dots", 2), ("three dots", 3), ("four dots", 4), ("row of dots", 3)):
        # 12 %: dots that are moved over the border, and the pixel grid
        assert share_inside(name) == pytest.approx(count * one / np.pi, rel=0.12), name


def test_the_mean_image_of_every_class_is_grey() -> None:
    """Light on dark is as frequent as dark on light: the mean holds nothing for a linear map."""
    images, labels = shapes.generate(300, seed=0)
    for label in range(20):
        mean = images[labels == label].mean(0) / 255
        # 300 images of deviation 0.3: 0.017 a pixel; 6 sigma over 3,072 pixels and 20 classes
        assert np.abs(mean - 0.5).max() < 0.11


def test_a_linear_classifier_of_the_pixels_fails() -> None:
    """Ridge regression to one-hot labels; chance is 5 %, a small convolutional net reaches 98 %."""
    train, labels = shapes.generate(150, seed=0)
    test, truth = shapes.generate(50, seed=0, part=2)
    x, z = (s.reshape(len(s), -1).astype(np.float32) / 255 - 0.5 for s in (train, test))
    kernel = x @ x.T
    scores = []
    for penalty in (30.0, 300.0, 3000.0):
        dual = np.linalg.solve(kernel + penalty * np.eye(len(x)), np.eye(20)[labels] - 0.05)
        scores.append(((z @ (x.T @ dual)).argmax(1) == truth).mean())
    assert max(scores) < 0.25
