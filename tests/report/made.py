"""Runs made from numbers that can be checked by hand, without training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blockout.report.view import RunView
from blockout.structure import Structure
from blockout.structure_sources import HEAD_LAYERS

HALVES = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], dtype=np.float32)
CLASSES = ("cat", "dog", "oak", "fir")
CONFUSION = ((6, 3, 1, 0), (1, 8, 0, 1), (0, 0, 9, 1), (0, 2, 2, 6))
"""Ten test images a class; 6, 8, 9 and 6 are right."""


def made_run(
    p_2: Any = HALVES,
    *,
    p_1: Any = None,
    p_0: Any = None,
    classes: Sequence[str] = CLASSES,
    confusion: Any = CONFUSION,
    groups: Sequence[int] | None = None,
    folder: Path = Path("made"),
    config: dict[str, Any] | None = None,
) -> RunView:
    """A finished run with these P; without ``p_2``, one without Blockout."""
    memberships = {} if p_2 is None else _sets(p_0, p_1, p_2)
    names = None if groups is None else tuple(f"known {g}" for g in range(max(groups) + 1))
    labels, predicted, probabilities = _predictions(np.array(confusion))
    taxonomy = None if groups is None or names is None else tuple(names[g] for g in groups)
    structure = Structure(
        tuple((k, v.tolist()) for k, v in memberships.items()), HEAD_LAYERS, classes=tuple(classes),
        taxonomy=taxonomy,
    ) if memberships else None  # fmt: skip
    about = {"classes": list(classes), "groups": groups, "group_names": names}
    return RunView(
        folder, folder.name, config or {"method": "blockout", "seed": 0, "data": "nowhere"}, about,
        {"test": {}}, {}, [], [], {}, memberships, labels, predicted, probabilities, structure,
    )  # fmt: skip


def _sets(p_0: Any, p_1: Any, p_2: Any) -> dict[str, np.ndarray]:
    given = {"P_0": p_0, "P_1": p_1, "P_2": p_2}
    return {
        name: np.asarray(p_2 if p is None else p, dtype=np.float32) for name, p in given.items()
    }


def _predictions(confusion: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One image for each count, row by row; each a little less certain than the one before."""
    pairs = np.argwhere(confusion)
    images = np.repeat(pairs, confusion[tuple(pairs.T)], axis=0)
    certain = np.linspace(0.9, 0.3, len(images), dtype=np.float32)
    return images[:, 0], images[:, 1:], certain[:, None]


def texts(figure: Any) -> str:
    """Everything that a figure says, as one text."""
    return repr((figure.data, figure.layout, figure.note))
