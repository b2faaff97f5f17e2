import numpy as np

from blockout.show.page.masks import section

from ..made import layout, made_run, traces


def test_there_is_a_panel_for_each_layer_and_classes_can_be_marked():
    examples, learned = section([made_run()]).figures
    assert [a["text"] for a in layout(examples)["annotations"]] == [
        "Dropout", "Blockout, 4 branches", "DropConnect",
    ]  # fmt: skip
    assert [a["text"] for a in layout(learned)["annotations"]] == ["FC2", "the classifier"]
    assert traces(learned)[0]["z"].tolist() == [[50, 50, 0, 0]] * 2 + [[0, 0, 50, 50]] * 2
    assert traces(learned)[0]["z"].dtype == np.uint8
    assert [t.get("showscale") for t in traces(learned)] == [True, False, None]  # one for both
    (points,) = [trace for trace in traces(learned) if trace.get("meta")]
    assert points["customdata"] == [[0], [1], [2], [3]] and points["y"] == [0, 1, 2, 3]


def test_runs_without_blockout_have_no_masks():
    assert section([made_run(None)]) is None
