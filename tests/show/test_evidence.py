"""blockout.show.evidence on a real run."""

import numpy as np
import torch

from blockout.data.images import normalise
from blockout.models import grad_cam
from blockout.runs import Run
from blockout.show.evidence import BATCH, evidence

from .page.conftest import NAMES, tinted_images, tiny_run


def test_maps_are_those_of_the_trained_network_for_the_classes_asked_for(tmp_path):
    run = Run.open(tiny_run(tmp_path / "run", tinted_images(NAMES), "fc"))
    count = BATCH + 1
    pixels = tinted_images(NAMES).test.images_at(list(range(count))).numpy()
    classes = [0, 1, 2, 3, 4]
    found = evidence(run, pixels, classes)
    trained = run.network()
    images = normalise(torch.from_numpy(pixels), trained.mean, trained.std)
    expected = grad_cam(trained.model, images, torch.tensor(classes)).numpy()
    assert expected.max() == 1 and not np.allclose(expected[0], expected[1])
    np.testing.assert_allclose(np.stack(found), expected, atol=1e-4)
