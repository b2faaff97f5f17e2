"""Runs made from numbers that can be checked by hand, without training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blockout.runs import Run, TrainConfig
from blockout.runs.arrays import Predictions
from blockout.runs.documents import BINS, Description, Result, Scores

HALVES = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], dtype=np.float32)
CLASSES = ("cat", "dog", "oak", "fir")
CONFUSION = ((6, 3, 1, 0), (1, 8, 0, 1), (0, 0, 9, 1), (0, 2, 2, 6))
"""Ten test images per class; 6, 8, 9 and 6 are right."""


def config(**flags: Any) -> TrainConfig:
    """As a run resolves it."""
    return TrainConfig.from_flat(TrainConfig().flat() | {"data": "cifar100"} | flags).resolved()


def result(accuracy: float = 50.0, steps: int = 100, **more: Any) -> Result:
    return Result(test=Scores(accuracy, 90.0, 1.0), steps=steps, seconds=60.0, **more)


def description(
    classes: Sequence[str] = CLASSES,
    data: str = "nowhere",
    groups: Sequence[int] | None = None,
    group_names: Sequence[str] | None = None,
) -> Description:
    return Description(
        format=1,
        model={},
        classes=tuple(classes),
        groups=None if groups is None else tuple(groups),
        group_names=None if group_names is None else tuple(group_names),
        data=data,
        image_size=32,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    )


def bare_run(name: str = "one", *, finished: bool = True, **flags: Any) -> Run:
    """A run with these flags that has logged nothing."""
    return Run(Path(name), name, config(**flags), result=result() if finished else None)


def made_run(
    p_2: Any = HALVES,
    *,
    p_1: Any = None,
    p_0: Any = None,
    classes: Sequence[str] = CLASSES,
    confusion: Any = CONFUSION,
    groups: Sequence[int] | None = None,
    folder: Path = Path("made"),
    **flags: Any,
) -> Run:
    """A finished run with these P; without ``p_2``, one without Blockout."""
    names = None if groups is None else tuple(f"known {g}" for g in range(max(groups) + 1))
    return Run(
        folder,
        folder.name,
        config(data="nowhere", method="fc" if p_2 is None else "blockout", **flags),
        description=description(classes, groups=groups, group_names=names),
        result=result(),
        memberships={} if p_2 is None else _sets(p_0, p_1, p_2),
        predictions=_predictions(np.array(confusion)),
    )


def _sets(p_0: Any, p_1: Any, p_2: Any) -> dict[str, np.ndarray]:
    given = {"P_0": p_0, "P_1": p_1, "P_2": p_2}
    return {
        name: np.asarray(p_2 if p is None else p, dtype=np.float32) for name, p in given.items()
    }


def _predictions(confusion: np.ndarray) -> Predictions:
    """One image for each count, row by row; each a little less certain than the one before."""
    pairs = np.argwhere(confusion)
    images = np.repeat(pairs, confusion[tuple(pairs.T)], axis=0)
    certain = np.linspace(0.9, 0.3, len(images), dtype=np.float32)
    return Predictions(images[:, 0], images[:, 1:], certain[:, None])


def histogram(*pieces: tuple[int, float, float]) -> np.ndarray:
    """So many memberships evenly between two values of P, and so on."""
    p = np.concatenate([np.linspace(low, high, count) for count, low, high in pieces])
    return np.histogram(p, BINS, (0, 1))[0]


def traces(figure: Any) -> list[dict[str, Any]]:
    """What a figure draws, as plain dictionaries."""
    return [trace.to_plotly_json() for trace in figure.chart.data]


def layout(figure: Any) -> dict[str, Any]:
    return figure.chart.layout.to_plotly_json()


def texts(figure: Any) -> str:
    """Everything that a figure says, as one text."""
    return repr((traces(figure), layout(figure), figure.note))
