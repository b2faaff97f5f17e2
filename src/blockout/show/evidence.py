"""What in test images spoke for the answer that the network gave (Grad-CAM)."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float32, UInt8

from blockout.data.images import normalise
from blockout.models import grad_cam
from blockout.runs import Run

BATCH = 4
"""Images at once: some trunks need their activations kept."""
Map = Float32[np.ndarray, "grid_h grid_w"]
"""From 0 to 1: how much each place speaks for a class."""


def evidence(
    run: Run, pixels: UInt8[np.ndarray, "n height width 3"], classes: Sequence[int]
) -> list[Map] | None:
    """For each image, where the trained network found its class; all zero if nowhere.

    None where the trunk of the run has no feature map. Raises whatever ``Run.network`` does.
    """
    trained = run.network()
    found: list[Map] = []
    for first in range(0, len(pixels), BATCH):
        some = torch.from_numpy(pixels[first : first + BATCH])
        images = normalise(some, trained.mean, trained.std)
        wanted = torch.tensor(classes[first : first + BATCH], dtype=torch.int64)
        maps = grad_cam(trained.model, images, wanted)
        if maps is None:
            return None
        found += list(maps.numpy())
    return found
