"""Fig. 6."""

import numpy as np

from blockout.show.figures.sharing import one_step


def test_fig_6_masks_real_weights_with_a_real_draw():
    step = one_step()
    for j in (1, 2):
        np.testing.assert_allclose(step.masks[j - 1], step.c[j] @ step.c[j - 1].T / 3, atol=1e-6)
        assert ((step.weights[j - 1] != 0) == (step.masks[j - 1] > 0)).all()
