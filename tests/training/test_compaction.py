"""The compact network of a run: chosen on the hold-out, written beside it, read back."""

import copy
import dataclasses
import json
import shutil

import pytest
import torch
from torch import nn

from blockout.compact import DenseBlocks, SparseLinear, multiply_adds, to_branches
from blockout.export import export
from blockout.models import Head, ImageClassifier, SmallInception, from_description
from blockout.runs import Run, RunError, TrainedModel
from blockout.runs import folder as files
from blockout.runs.documents import Result, Scores, as_json
from blockout.runs.trained import description
from blockout.training import evaluate
from blockout.training.compaction import (
    compact_classifier,
    compact_run,
    curve,
    threshold_for_loss,
    threshold_for_share,
)

from .conftest import HALF, make_config, make_images


@pytest.fixture(scope="module")
def data():
    return make_images(size=28)


@pytest.fixture
def trained(data) -> TrainedModel:
    """Memberships of all sizes, so that thresholds differ."""
    trunk = SmallInception(0.1, True)
    head = Head(trunk.features, 4, nodes=24, clusters=3)
    for memberships in (head.fc2.inputs, head.fc2.outputs, head.classifier.outputs):
        memberships.logits.data.normal_(0, 3)
    model = ImageClassifier(trunk, head).eval()
    return TrainedModel(model, data.classes, None, 28, HALF, HALF)


@pytest.fixture
def run(tmp_path, trained, data):
    """As a finished run would leave it."""
    scores = Scores(accuracy=50.0, top5=100.0, loss=1.0)
    result = Result(test=scores, steps=20, seconds=1.0)
    about = description(trained.model, data)
    files.write_json(tmp_path / files.CONFIG, make_config(tmp_path, lr=0.5).flat())
    files.write_json(tmp_path / files.MODEL, as_json(about))
    files.write_json(tmp_path / files.RESULT, as_json(result))
    return Run.open(tmp_path)


def test_a_compact_run_is_read_back_as_it_was_written(run, trained, data):
    done = compact_run(run, trained.model, data, 0.6, say=lambda _: None)
    loaded = run.network("compact")
    x = torch.randn(3, 3, 28, 28)
    expected = to_branches(trained.model.head, 0.6, measure=False).eval()
    features = trained.model.features(x)
    torch.testing.assert_close(loaded.model(x), expected(features), atol=1e-5, rtol=1e-4)
    assert loaded.classes == data.classes
    assert done.test == (
        evaluate(trained.model, data.test).accuracy,
        evaluate(loaded.model, data.test).accuracy,
    )
    assert done.multiply_adds[1] == multiply_adds(loaded.model.head, features[:1])
    told = json.loads((run.folder / files.COMPACT_MODEL).read_text())["compaction"]
    assert told["threshold"] == 0.6
    assert told["notes"].keys() == {"fc2", "classifier"}


@pytest.mark.parametrize("which", [0, 1, 9])
def test_every_layout_of_a_head_survives_json(monkeypatch, trained, which):
    monkeypatch.setattr(
        "blockout.compact.layout._measured",
        lambda modules, _: [1.0 + (i != min(which, len(modules) - 1)) for i in range(len(modules))],
    )
    model = trained.model
    model.head = to_branches(model.head, 0.4).eval()
    twin = from_description(json.loads(json.dumps(model.describe()))).eval()
    twin.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 28, 28)
    assert torch.equal(twin(x), model(x))
    assert twin.describe() == model.describe()
    assert isinstance(twin.head.fc2, SparseLinear if which == 0 else DenseBlocks)


def test_the_share_to_keep_decides_the_threshold(trained):
    head, x = trained.model.head, torch.zeros(1, trained.model.trunk.features)
    chosen = threshold_for_share(trained.model, 0.6)

    def share(threshold: float) -> float:
        pairs = multiply_adds(head, x) * 0
        for layer in (head.fc2, head.classifier):
            c = [m.probabilities >= threshold for m in (layer.outputs, layer.inputs)]
            pairs += int((c[0].float() @ c[1].float().T > 0).sum())
        return pairs / multiply_adds(head, x)

    assert share(chosen) <= 0.6  # connected pairs alone, of which some lead from or to the dead
    assert share(chosen - 0.05) > share(chosen)
    with pytest.raises(RunError, match=r"--keep 0.001 cannot be reached"):
        threshold_for_share(trained.model, 0.001)


def test_the_threshold_loses_no_more_than_allowed_and_sees_the_holdout_only(trained, data):
    def guesses(threshold: float) -> torch.Tensor:
        small = to_branches(trained.model.head, threshold, measure=False).eval()
        with torch.no_grad():
            return small(trained.model.features(_images(data.holdout))).argmax(1)

    with torch.no_grad():
        logits = trained.model(_images(data.holdout))
        trained.model.head.classifier.bias -= logits.mean(0)  # every class is guessed
    right = guesses(0.0)
    assert len(right.unique()) > 2
    holdout = copy.copy(data.holdout)
    holdout.labels = right  # 100 % right as trained
    chosen = threshold_for_loss(trained.model, holdout, 25.0)
    assert 0 < chosen < 1
    assert (guesses(chosen) == right).double().mean() >= 0.75
    strict = threshold_for_loss(trained.model, holdout, 0.0)
    assert strict <= chosen
    assert torch.equal(guesses(strict), right)
    none = copy.copy(holdout)
    none.labels = right[:0]
    with pytest.raises(RunError, match="--max-loss needs a hold-out"):
        threshold_for_loss(trained.model, none, 1.0)


def _images(split) -> torch.Tensor:
    return torch.cat([x for x, _ in split.batches(500, train=False)])


def test_a_curve_tells_accuracy_and_work_of_the_compact_network_at_each_threshold(trained, data):
    points = curve(trained.model, data.holdout, batch_size=8)
    x, labels = _images(data.holdout), data.holdout.labels
    head, features = trained.model.head, trained.model.trunk.features
    connections = [layer.weight.numel() for layer in (head.fc2, head.classifier)]
    plain = head.fc1.weight.numel()
    for point in points:
        small = to_branches(head, point.threshold, measure=False).eval()
        with torch.no_grad():
            right = (small(trained.model.features(x)).argmax(1) == labels).double().mean().item()
        assert point.accuracy == pytest.approx(100 * right)
        assert 0 < point.needed <= point.carried_out <= 1
        assert min(point.dense_milliseconds, point.compact_milliseconds) > 0
    assert (points[0].needed, points[0].carried_out) == (1.0, 1.0)
    assert [p.needed for p in points] == sorted((p.needed for p in points), reverse=True)
    assert 0.5 in [p.threshold for p in points]
    assert 4 < len(points) <= 8
    assert sum(connections) + plain == multiply_adds(head, torch.zeros(1, features))


def test_a_settled_structure_has_two_points_of_the_same_accuracy(trained, data):
    for memberships in (m for m in trained.model.head.modules() if hasattr(m, "logits")):
        memberships.logits.data.copy_(torch.where(memberships.logits > 0, 200.0, -200.0))
    whole, cut = curve(trained.model, data.holdout, batch_size=8)
    assert (whole.threshold, cut.threshold) == (0.0, 0.5)
    assert whole.accuracy == cut.accuracy
    assert cut.needed < whole.needed == 1.0


def test_fine_tuning_keeps_the_structure_and_leaves_the_run_alone(run, trained, data):
    before = {k: v.clone() for k, v in trained.model.state_dict().items()}
    plain = compact_run(run, trained.model, data, 0.6, say=lambda _: None)
    weight = run.network("compact").model.head.fc2.weight
    said = []
    tuned = compact_run(run, trained.model, data, 0.6, fine_tune=2, say=said.append)
    trained_on = run.network("compact").model.head.fc2.weight
    assert torch.equal(weight == 0, trained_on == 0)
    assert (weight == 0).any()
    assert not torch.equal(weight, trained_on)
    assert tuned.multiply_adds == plain.multiply_adds
    assert [line[:15] for line in said] == ["fine-tuning 1/2", "fine-tuning 2/2"]
    assert all(torch.equal(v, before[k]) for k, v in trained.model.state_dict().items())


def test_what_cannot_be_done_is_said(run, trained, data):
    with pytest.raises(RunError, match="there is no compact network in"):
        run.network("compact")
    compact_run(run, trained.model, data, 0.5, say=lambda _: None)
    shutil.copy(run.folder / files.MODEL, run.folder / files.COMPACT_WEIGHTS)
    with pytest.raises(RunError, match=r"compact.safetensors is damaged"):
        run.network("compact")
    plain = ImageClassifier(trained.model.trunk, Head(trained.model.trunk.features, 4, method="fc"))
    with pytest.raises(RunError, match="no memberships to compact"):
        compact_run(run, plain, data, 0.5)


@pytest.mark.parametrize("which", [1, 9])
def test_blocks_and_sums_of_blocks_are_exported(monkeypatch, tmp_path, trained, which):
    """``export`` loads the file back and compares; .pt2 allows known operators only."""
    monkeypatch.setattr(
        "blockout.compact.layout._measured",
        lambda modules, _: [1.0 + (i != min(which, len(modules) - 1)) for i in range(len(modules))],
    )
    features = trained.model.trunk.features
    trunk = nn.Sequential(nn.Conv2d(3, features, 3, 4), nn.ReLU())
    model = compact_classifier(ImageClassifier(trunk, trained.model.head), 0.4, 8)
    assert isinstance(model.head.fc2, DenseBlocks)
    done = export(dataclasses.replace(trained, model=model), tmp_path / "small.pt2", "pt2")
    assert done.difference < 1e-5
