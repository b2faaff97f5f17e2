import numpy as np
from PIL import Image

from blockout.runs import folder as files
from blockout.show.colours import cluster_colour
from blockout.show.page.drawing import list_of_classes, to_class
from blockout.show.page.hierarchy import MOST_BYTES, TWIGS, section

from ..made import HALVES, layout, made_run, traces

SHARED = [[1, 0, 1], [1, 0, 0], [0, 1, 0], [0, 1, 0]]
"""The first class is in two branches."""


def test_groups_are_listed_with_their_classes_and_branches():
    body = section([made_run()]).body
    assert "2 classes · all in branch 0" in body and "2 classes · all in branch 1" in body
    assert body.index("cat") < body.index("dog") < body.index("oak")
    assert 'data-class="2"' in body and "<img" not in body


def test_classes_show_their_test_images(tmp_path):
    Image.new("RGB", (64, 64), "red").save(tmp_path / files.THUMBNAILS)
    body = section([made_run(folder=tmp_path)]).body
    assert body.count('src="data:image/jpeg;base64,') == 4
    assert 'alt="test images of oak"' in body


def test_images_of_a_thousand_classes_stay_small(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (32 * 1000, 128, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / files.THUMBNAILS)
    p = np.random.default_rng(1).random((1000, 4))
    run = made_run(
        p, classes=list(map(str, range(1000))), confusion=np.eye(1000, dtype=int), folder=tmp_path
    )
    found = section([run])
    assert found.body.count("<img") == 1000
    assert len(found.body) < MOST_BYTES + 250_000  # the names and buttons around them
    (figure,) = found.figures
    assert len(layout(figure)["yaxis"]["tickvals"]) == TWIGS
    (points,) = [trace for trace in traces(figure) if trace.get("meta")]
    assert sorted(c for (c,) in points["customdata"]) == list(range(1000))


def test_names_are_text_and_lead_to_their_class(tmp_path):
    run = made_run(SHARED, classes=('<b>"x"', "b & c", "d", "e"))
    found = section([run])
    assert "<b>&lt;" not in found.body and "&lt;b&gt;&#34;x&#34;" in found.body
    shown = {to_class(run, c, 24) for c in range(4)}
    assert set(layout(found.figures[0])["yaxis"]["ticktext"]) == shown
    assert f'<a style="--class:{list_of_classes(run.classes)}-0">&lt;b&gt;"x"</a>' in shown


def test_lines_join_classes_at_their_distance_in_the_colour_of_their_branch():
    nearly = np.clip(HALVES, 0.001, 1)  # so that there is a tree to draw
    (figure,) = section([made_run(nearly)]).figures
    lines = {
        t["line"]["color"]: (t["x"], t["y"]) for t in traces(figure) if t.get("mode") == "lines"
    }
    assert lines[cluster_colour(0)] == ([0, 0, 0, 0, None], [0, 0, 1, 1, None])
    assert lines[cluster_colour(1)] == ([0, 0, 0, 0, None], [2, 2, 3, 3, None])
    (grey,) = set(lines) - {cluster_colour(0), cluster_colour(1)}
    assert lines[grey] == ([0, 2, 2, 0, None], [0.5, 0.5, 2.5, 2.5, None])


def test_where_each_class_is_in_one_branch_the_groups_say_all_and_no_tree_is_drawn():
    for p in (HALVES, [[1, 0], [0, 1], [0, 0], [1, 0]]):
        found = section([made_run(p)])
        assert found.figures == () and "tree" not in found.lead
        assert "<details open>" in found.body
    assert "In the tree" in section([made_run(SHARED)]).lead


def test_cells_beside_the_names_are_p():
    shared = np.clip(HALVES, 0.25, 1)
    (figure,) = section([made_run(shared)]).figures
    columns = [trace["z"][:, 0].tolist() for trace in traces(figure) if trace["type"] == "heatmap"]
    assert columns == shared.T.tolist()


def test_classes_in_no_branch_are_named():
    body = section([made_run([[1, 0], [0, 1], [0, 0], [1, 0]])]).body
    assert "nothing of an image would reach them in a compact network: oak." in body


def test_the_groups_of_one_branch_or_another_are_said_so(tmp_path):
    p = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]
    body = section([made_run(p, groups=(0, 0, 1, 1))]).body
    assert "each in some of the branches 0, 1" in body


def test_two_classes_make_a_tree_and_runs_without_blockout_none():
    two = made_run([[1, 0], [0.1, 1]], classes=("a", "b"), confusion=np.eye(2, dtype=int))
    assert len(section([two]).figures) == 1
    assert section([made_run(None)]) is None
