"""Fig. 7."""

import pytest
import torch

from blockout.models import ModelConfig, build_model
from blockout.show.figures import CannotDraw
from blockout.show.figures.models import models, outline

from .made import text_of


def test_fig_7_has_the_sizes_of_the_model(run):
    model = build_model(ModelConfig(), classes=10, data_name="cifar100", image_size=32)
    with torch.device("meta"):
        model = model.to("meta")
    texts = [part.text for part in outline(model, 32)]
    assert texts[-4:] == ["FC1, 168 → 512", "FC2, Blockout, 512 → 512",
                          "classifier, Blockout, 512 → 10", "softmax"]  # fmt: skip
    assert "168 channels, 4×4" in texts
    config = ModelConfig(with_linear=True)
    with torch.device("meta"):
        model = build_model(config, classes=10, data_name="cifar100", image_size=32)
        parts = outline(model, 32)
    assert [part.beside for part in parts if part.beside] == ["linear, 168 → 10"]
    assert [part.text for part in parts[-2:]] == ["mean of both", "softmax"]
    assert "classifier, 8 → 6" in text_of(models(run.description.model))
    assert "0.43 M weights" in text_of(models()) and "0.82 M weights" in text_of(models())
    own = run.description.model | {"trunk": {"kind": "own", "class": "my.Trunk"}}
    with pytest.raises(CannotDraw, match=r"my\.Trunk"):
        models(own)
