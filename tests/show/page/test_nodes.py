import numpy as np
import pytest

from blockout.show.colours import cluster_colour
from blockout.show.page.nodes import section

from ..made import HALVES, layout, made_run, traces


def points_of(figure) -> list[dict]:
    return [t for t in traces(figure) if t["mode"] == "markers" and t["x"][0] is not None]


def test_runs_without_blockout_have_no_section():
    assert section([made_run(None)]) is None


def test_there_is_a_figure_for_each_set_of_nodes():
    found = section([made_run()])
    assert [figure.id for figure in found.figures] == ["nodes-p0", "nodes-p1", "nodes-p2"]


def test_nodes_with_the_same_p_are_one_bubble_as_large_as_they_are_many():
    p = np.repeat([[1, 0, 0], [0, 1, 0], [0, 1, 1]], [5, 2, 3], axis=0)
    figure = section([made_run(np.eye(4)[:, :3], p_0=p)]).figures[0]
    sizes = {int(n): t["name"] for t in points_of(figure) for n in t["marker"]["size"]}
    assert sizes == {5: "branch 0", 2: "branch 1", 3: "branch 1"}
    assert "one bubble, its area their number" in figure.note
    rims = {c for t in points_of(figure) for c in t["marker"]["line"]["color"]}
    assert rims == {cluster_colour(0), cluster_colour(1), cluster_colour(2)}


def test_different_nodes_lie_where_a_singular_value_decomposition_puts_them():
    p = np.random.default_rng(0).random((300, 4)).astype(np.float32)
    figure = section([made_run(np.eye(4), p_0=p)]).figures[0]
    assert figure.note == "Each point is a node."
    left, sizes, _ = np.linalg.svd(p - p.mean(0), full_matrices=False)
    expected = np.abs(left[:, 0] * sizes[0])
    found = np.zeros(300)
    for trace in points_of(figure):
        assert (p[trace["customdata"]].argmax(1) == int(trace["name"][-1])).all()
        found[trace["customdata"]] = np.abs(trace["x"])
    assert found == pytest.approx(expected, abs=1e-5)  # float32
    share = sizes[0] ** 2 / (sizes**2).sum()
    assert layout(figure)["xaxis"]["title"]["text"] == f"shows {share:.0%} of the differences"


def test_every_class_has_a_place_of_its_own_and_can_be_marked():
    figure = section([made_run()]).figures[2]
    shown = [t for t in traces(figure) if "meta" in t]
    assert [t["customdata"] for t in shown] == [[[0], [1]], [[2], [3]]]
    places = {(float(x), float(y)) for t in shown for x, y in zip(t["x"], t["y"], strict=True)}
    assert len(places) == 4
    across = [t["x"].mean() for t in shown]
    assert abs(across[0] - across[1]) == pytest.approx(2**0.5, rel=0.15)  # spread moves them little


def test_hovering_a_class_says_its_name_and_branches():
    run = made_run([[1, 1], [1, 0], [0, 0], [0, 1]], classes=("<b>a", "b", "c", "d"))
    said = [x for t in traces(section([run]).figures[2]) if t.get("meta") for x in t["text"]]
    assert "<b>&lt;b&gt;a</b><br>branches 0 + 1" in said
    assert "<b>c</b><br>not surely in any branch" in said


def test_names_are_never_written_over_each_other(tmp_path):
    def names_shown(panels: int) -> int:
        runs = [
            made_run(np.eye(2), classes=("a rather long name", "an even longer one"),
                     confusion=np.eye(2, dtype=int), folder=tmp_path / str(i))
            for i in range(panels)
        ]  # fmt: skip
        drawn = traces(section(runs).figures[2])
        return sum(len(trace["text"]) for trace in drawn if trace["mode"] == "text")

    assert names_shown(1) == 2  # one at each side
    assert names_shown(4) == 4  # a panel of a quarter of the width has room for one


def test_runs_of_different_widths_stand_side_by_side_the_narrowest_first(tmp_path):
    wide = made_run(p_0=np.repeat(HALVES, 3, axis=0), folder=tmp_path / "wide")
    narrow = made_run(folder=tmp_path / "narrow")
    again = [made_run(folder=tmp_path / f"seed {i}") for i in range(4)]
    found = section([wide, narrow, *again]).figures[0]
    titles = [a["text"] for a in layout(found)["annotations"]]
    assert titles == ["narrow", "seed 0", "seed 1", "wide"]
    assert found.title == "P_0: outputs of FC1, 4 / 12 nodes"
    assert {t.get("xaxis", "x") for t in points_of(found)} == {"x", "x2", "x3", "x4"}


def test_a_branch_is_named_once_for_all_panels(tmp_path):
    found = section([made_run(), made_run(folder=tmp_path / "b")]).figures[0]
    shown = [trace["name"] for trace in traces(found) if trace["showlegend"]]
    assert shown == ["branch 0", "branch 1"]


def test_one_cluster_and_equal_nodes_can_be_drawn():
    found = section([made_run(np.ones((4, 1)))])
    assert len(found.figures) == 3
