"""The paper's figures: what they compute, what they show, and `blockout figures`."""

import json
import re
import threading
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from safetensors.numpy import save_file

from blockout.figures import CATALOGUE, CannotDraw, encoded, selection
from blockout.figures.architectures import architectures, layered
from blockout.figures.classes import classes
from blockout.figures.convergence import convergence
from blockout.figures.distributions import distributions
from blockout.figures.examples import pictures, telling_classes
from blockout.figures.masks import drawn, dropconnect, learned, most_branched
from blockout.figures.models import models, outline
from blockout.figures.nodes import nodes
from blockout.figures.sharing import one_step
from blockout.models import ModelConfig, build_model
from blockout.report.numbers import (
    expected_clusters,
    expected_mask,
    order_by_code,
    principal_components,
    quartiles,
    shrunk,
    strongest_clusters,
)  # fmt: skip
from blockout.report.view import RunView
from blockout.training import files, finish

NAMES = ("cat", "dog", "oak", 'a "quoted" $fir$', "<b>elm</b>", "ש🙂")
GROUPS = [0, 0, 1, 1, 1, 1]
P_2 = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 1], [0, 1, 1], [1, 1, 1]], np.float32)
STEPS = (10, 20, 30)


def make_run(folder, *, method="blockout", width=8, seed=0, finished=True, **config):
    """The folder of a run of three epochs, as training writes it."""
    folder.mkdir(parents=True)
    config = {"data": "cifar100", "method": method, "nodes": width, "seed": seed, **config}
    chance = np.random.default_rng(seed)
    lines = []
    for epoch, step in enumerate(STEPS, 1):
        lines.append({"step": step, "epoch": epoch - 0.5, "loss": 3.0 / epoch + seed})
        lines.append({"step": step, "epoch": epoch, "epoch_loss": 2.0, "train_accuracy": 10 * epoch,
                      "test_accuracy": 9 * epoch + seed})  # fmt: skip
    write_lines(folder / files.METRICS, lines)
    (folder / files.CONFIG).write_text(json.dumps(config))
    p = {"P_0": chance.random((width, 3), np.float32), "P_1": chance.random((width, 3), np.float32)}
    p["P_2"] = P_2
    if method == "blockout":
        seen = {n: {"histogram": [int(q.size)] + [0] * 49, "quartiles": [0, 0.25, 1]}
                for n, q in p.items()}  # fmt: skip
        write_lines(folder / files.DISTRIBUTIONS, [{"step": s, **seen} for s in STEPS])
    if finished:
        finish_run(folder, method, width, p)
    return RunView.load(folder)


def finish_run(folder, method, width, p):
    choice = ModelConfig(method=method, nodes=width, clusters=3)
    model = build_model(choice, classes=6, data_name="shapes", image_size=32)
    about = {"format": finish.FORMAT, "model": model.describe(), "classes": NAMES,
             "groups": GROUPS, "group_names": ["pet", "tree"], "image_size": 32}  # fmt: skip
    (folder / files.MODEL).write_text(json.dumps(about))
    (folder / files.RESULT).write_text(json.dumps({"test": {"accuracy": 27.0}}))
    if method == "blockout":
        save_file(p, folder / files.MEMBERSHIPS)
    shades = np.repeat(10 * np.arange(6, dtype=np.uint8), 4)  # four rows of pixels a class
    sheet = np.broadcast_to(shades[:, None, None], (24, 16, 3))
    Image.fromarray(sheet.copy()).save(folder / files.THUMBNAILS)


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "wide")


def text_of(figure: Figure) -> str:
    return re.sub(r"<[^>]*>", "\n", encoded(figure, "svg").decode())


# --- numbers --------------------------------------------------------------------------------------


def test_components_are_those_of_a_singular_value_decomposition():
    p = np.random.default_rng(0).random((40, 5))
    centred = p - p.mean(0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    seen = principal_components(p.astype(np.float32))
    np.testing.assert_allclose(np.abs(seen.points), np.abs(u[:, :2] * s[:2]), atol=1e-5)  # float32
    np.testing.assert_allclose(seen.shares, (s**2 / (s**2).sum())[:2], atol=1e-6)


def test_components_have_a_sign_and_survive_one_cluster_and_equal_nodes():
    p = np.random.default_rng(1).random((9, 3))
    order = np.random.default_rng(2).permutation(9)
    one, two = principal_components(p).points, principal_components(p[order]).points
    np.testing.assert_allclose(one[order], two, atol=1e-12)
    single = principal_components(np.array([[0.0], [1.0]]))
    assert single.points.tolist() == [[-0.5, 0], [0.5, 0]] and single.shares.tolist() == [1, 0]
    assert principal_components(np.full((4, 3), 0.5)).points.tolist() == [[0, 0]] * 4


def test_the_digits_of_float32_are_no_second_component_and_no_strongest_cluster():
    chance = np.random.default_rng(3)
    p = np.repeat(chance.random((30, 1)), 4, axis=1) + 1e-7 * chance.standard_normal((30, 4))
    seen = principal_components(p.astype(np.float32))
    assert (seen.points[:, 1] == 0).all() and np.ptp(seen.points[:, 0]) > 1
    assert seen.shares.tolist() == pytest.approx([1, 0], abs=1e-9) and seen.shares[1] == 0
    assert not strongest_clusters(p.astype(np.float32)).any()


def test_nodes_of_a_code_stand_together_and_neighbouring_codes_differ_by_one_cluster():
    codes = np.array(list(np.ndindex(2, 2, 2)), float)[np.random.default_rng(0).permutation(8)]
    p = np.repeat(codes, 3, axis=0)[np.random.default_rng(1).permutation(24)]
    ordered = p[order_by_code(p)]
    changes = np.abs(np.diff(ordered, axis=0)).sum(1)
    assert sorted(changes.tolist()) == [0] * 16 + [1] * 7
    assert ordered[0].tolist() == [1, 0, 0] and ordered[-1].tolist() == [0, 0, 0]


def test_within_a_code_the_decided_come_first_and_one_half_belongs():
    assert order_by_code(np.array([[0.6], [0.9], [0.5], [0.49], [0.1]])).tolist() == [1, 0, 2, 4, 3]


def test_expected_mask_is_the_mean_of_many_draws():
    p_out, p_in = np.random.default_rng(0).random((2, 4, 3))
    chance = np.random.default_rng(1)
    draws = [
        (chance.random((4, 3)) < p_out).astype(float) @ (chance.random((4, 3)) < p_in).T / 3
        for _ in range(20_000)
    ]
    # Standard error below 0.5 / sqrt(20000) = 0.0036; six of them in 16 cells: 3e-8 to fail.
    np.testing.assert_allclose(np.mean(draws, axis=0), expected_mask(p_out, p_in), atol=0.022)


def test_shrunk_cells_are_means_and_the_mask_of_shrunk_p_is_the_shrunk_mask():
    matrix = np.arange(12.0).reshape(4, 3)
    assert shrunk(matrix, 2).tolist() == [[1.5, 3.0], [7.5, 9.0]]  # columns 0, and 1 with 2
    assert shrunk(matrix, 4).tolist() == matrix.tolist()
    p, q = np.random.default_rng(0).random((2, 12, 3))
    small = expected_mask(shrunk(p, 4), shrunk(q, 4))
    np.testing.assert_allclose(small, shrunk(expected_mask(p, q), 4), atol=1e-12)
    with pytest.raises(ValueError, match="most must be at least 1, got 0"):
        shrunk(matrix, 0)


def test_expected_clusters_and_their_quartiles():
    assert expected_clusters(P_2).tolist() == [1, 1, 1, 2, 2, 3]
    assert quartiles(expected_clusters(P_2)) == (1.0, 1.5, 2.0)


# --- what the figures show ------------------------------------------------------------------------


def test_fig_5_orders_what_is_drawn_without_changing_it():
    chance = torch.Generator().manual_seed(0)
    for mask in (drawn("Dropout", 1, chance), drawn("Blockout", 3, chance), dropconnect(chance)):
        assert mask.as_it_is.sum() == pytest.approx(mask.in_order.sum())
    dropout = drawn("Dropout", 1, chance).in_order
    kept = dropout.any(1).sum(), dropout.any(0).sum()
    assert dropout[: kept[0], : kept[1]].all() and not dropout[kept[0] :].any()


def test_fig_5_shows_the_learned_masks_of_the_most_branched_run(tmp_path, run):
    narrow = make_run(tmp_path / "narrow", width=6, seed=1)
    sparse = replace(narrow, structure=narrow.structure.at(1.0))
    assert most_branched([run, sparse]).name == "narrow"
    alike = {name: np.repeat(p[:, :1], 3, axis=1) for name, p in sparse.memberships.items()}
    assert most_branched([run, replace(sparse, memberships=alike)]) is run  # the other has one
    first, last = learned(run)
    p = run.memberships
    order = order_by_code(p["P_2"]), order_by_code(p["P_1"])
    expected = expected_mask(p["P_2"][order[0]], p["P_1"][order[1]])
    np.testing.assert_allclose(last.in_order, expected, atol=1e-6)
    assert last.axes == ("8 nodes of $P_{1}$", "6 classes") and first.title == "learned, fc2"


def test_fig_8_draws_the_mean_and_the_band_of_seeds(tmp_path):
    runs = [make_run(tmp_path / f"s{seed}", seed=seed) for seed in (0, 1)]
    runs.append(make_run(tmp_path / "drop", method="dropout", finished=False))
    figure = convergence(runs)
    cost, train, test = figure.axes
    assert [axes.get_title("left") for axes in figure.axes] == [
        "(a) training cost", "(b) training accuracy (%)", "(c) test accuracy (%)"]  # fmt: skip
    assert all(axes.get_xlabel() == "epoch" for axes in figure.axes)
    dropout, blockout = cost.lines
    assert blockout.get_label() == "Blockout (hard, learned), 2 seeds"
    assert dropout.get_label() == "Baseline + FC + Dropout"
    np.testing.assert_allclose(blockout.get_xydata(), [[0.5, 3.5], [1.5, 2.0], [2.5, 1.5]])
    np.testing.assert_allclose(test.lines[1].get_ydata(), [9.5, 18.5, 27.5])
    np.testing.assert_allclose(train.lines[0].get_ydata(), [10, 20, 30])
    band = test.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (9, 28)


def test_labels_tell_runs_apart_by_what_differs(tmp_path):
    given = [("a", {}), ("b", {"seed": 1}), ("c", {"width": 6}), ("d", {"hard": False}),
             ("e", {"paper": False}), ("f", {"data": "shapes", "paper": True})]  # fmt: skip
    runs = [make_run(tmp_path / name, finished=False, **config) for name, config in given]
    assert selection.labels(runs) == [
        "Blockout (hard, learned), cifar100, 8 nodes",
        "Blockout (hard, learned), cifar100, 8 nodes",
        "Blockout (hard, learned), cifar100, 6 nodes",
        "Blockout (soft, learned)",
        "Blockout (hard, learned, guided)", "Blockout (hard, learned), shapes",
    ]  # fmt: skip
    other = make_run(tmp_path / "long", finished=False, epochs=9)
    assert selection.labels([runs[0], other]) == [
        "Blockout (hard, learned), a", "Blockout (hard, learned), long"]  # fmt: skip


def test_fig_9_has_shares_and_the_median_of_every_set(tmp_path, run):
    training = make_run(tmp_path / "narrow", width=6, finished=False)
    figure = distributions([run, training])
    panels = [axes for axes in figure.axes if axes.lines]
    assert len(panels) == 6
    for axes in panels:
        np.testing.assert_allclose(axes.lines[0].get_xydata(), [[s, 0.25] for s in STEPS])
        shares = axes.collections[0].get_array().reshape(50, 3)
        assert shares[0].tolist() == [1, 1, 1] and shares[1:].sum() == 0
    text = text_of(figure)
    assert "probability" in text and "iteration" in text and "6 nodes" in text


def test_fig_10_places_nodes_by_their_components_and_numbers_classes(tmp_path, run):
    wide = make_run(tmp_path / "more", width=16)
    figure = nodes([wide, run], ["oak", "cat"])
    panels = [axes for axes in figure.axes if axes.collections]
    assert len(panels) == 6  # the narrow run first
    at = np.unique(principal_components(run.memberships["P_0"]).points.round(2), axis=0)
    offsets = np.array(sorted(map(tuple, panels[0].collections[0].get_offsets())))
    np.testing.assert_allclose(offsets, at)
    numbered = [t.get_text() for t in panels[2].texts]
    assert {"1", "2"} <= set(numbered)
    text = text_of(figure)
    assert "1. oak" in text and "2. cat" in text and "16 nodes" in text


def test_nodes_of_the_same_p_are_one_dot_as_large_as_they_are_many(run):
    dots = nodes([run]).axes[2].collections[0]
    assert len(dots.get_offsets()) == 4
    sizes = np.sort(dots.get_sizes())
    np.testing.assert_allclose(sizes, 3 + 700 * np.array([1, 1, 2, 2]) / 6)


def test_telling_classes_are_near_and_far_ones_of_a_group(run):
    first, second, third, fourth = telling_classes(run)
    assert {GROUPS[c] for c in (first, second, fourth)} == {1} and GROUPS[third] == 0
    assert (P_2[first] == P_2[second]).all() and (P_2[first] != P_2[fourth]).any()
    alone = replace(run, about=run.about | {"groups": None})
    assert len(telling_classes(alone)) == 3


def test_pictures_are_those_of_the_class(tmp_path, run):
    (images,) = pictures(run, [3])
    assert len(images) == 4 and all((image * 255).round().max() == 30 for image in images)
    (run.folder / files.THUMBNAILS).unlink()
    assert pictures(run, [3]) == [[]]
    assert "1. oak" in text_of(nodes([run], ["oak"]))


def test_fig_11_shows_clusters_a_class_with_median_and_quartiles(tmp_path, run):
    wide = make_run(tmp_path / "more", width=16)
    figure = classes([run, wide])
    first, second = (axes for axes in figure.axes if axes.patches)
    assert [bar.get_height() for bar in first.patches[:6]] == [1, 1, 1, 2, 2, 3]
    assert [line.get_ydata()[0] for line in first.lines] == [1.0, 1.5, 2.0]
    assert [line.get_linestyle() for line in first.lines] == [":", "-", ":"]
    assert first.get_ylabel() == "expected clusters"
    assert "r = 1.00 with (a)" in [note.get_text() for note in second.texts]
    assert first.patches[6].get_height() == 3  # the first example has the most clusters


def test_runs_that_draw_come_first_and_fixed_p_are_not_shown(tmp_path, run):
    soft = make_run(tmp_path / "soft", hard=False)
    wider = make_run(tmp_path / "wider", width=16)
    fixed = make_run(tmp_path / "fixed", width=4, learned=False)
    shown = selection.branching([fixed, soft, wider, run], finished=True)
    assert [view.name for view in shown] == ["wide", "wider", "soft"]
    with pytest.raises(CannotDraw, match=r"learns P, and there is only fixed \(blockout, P fixed"):
        distributions([fixed])
    assert text_of(CATALOGUE[1].draw([fixed], ())) == text_of(CATALOGUE[1].draw([], ()))


def test_runs_on_different_classes_are_not_compared(tmp_path, run):
    other = replace(run, about=run.about | {"classes": list("abcdef")}, name="other",
                    config=run.config | {"data": "shapes"})  # fmt: skip
    with pytest.raises(CannotDraw, match="wide and other have different classes"):
        classes([run, other])


def test_fig_1_connects_groups_exactly_where_they_share_a_cluster():
    structure = layered([(0,), (0,), (1,)], [(0, 1), (1,)], classes=["cat", "dog"])
    assert structure.costs[0].pairs_after == 4
    text = text_of(architectures(structure))
    assert "a hierarchy that was learned" in text and "cat" in text and "dog" in text


def test_fig_6_masks_real_weights_with_a_real_draw():
    step = one_step()
    for j in (1, 2):
        np.testing.assert_allclose(step.masks[j - 1], step.c[j] @ step.c[j - 1].T / 3, atol=1e-6)
        assert ((step.weights[j - 1] != 0) == (step.masks[j - 1] > 0)).all()


def test_fig_7_has_the_sizes_of_the_model(run):
    model = build_model(ModelConfig(), classes=10, data_name="cifar100", image_size=32)
    with torch.device("meta"):
        model = model.to("meta")
    texts = [part.text for part in outline(model, 32)]
    assert texts[-4:] == ["FC1, 168 → 512", "FC2, Blockout, 512 → 512",
                          "classifier, Blockout, 512 → 10", "softmax"]  # fmt: skip
    assert "168 channels, 4×4" in texts
    assert "classifier, 8 → 6" in text_of(models(run.about["model"]))
    own = run.about["model"] | {"trunk": {"kind": "own", "class": "my.Trunk"}}
    with pytest.raises(CannotDraw, match=r"my\.Trunk"):
        models(own)


# --- files ----------------------------------------------------------------------------------------


def test_an_svg_is_small_has_text_and_is_the_same_every_time(run):
    first, second = (encoded(CATALOGUE[10].draw([run], ()), "svg") for _ in range(2))
    assert first == second and len(first) < 300_000
    assert b"<text" in first and b"<dc:date>" not in first


def test_drawing_leaves_settings_alone_and_works_in_threads(run):
    before = dict(matplotlib.rcParams)
    alone = encoded(convergence([run]), "png")
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(encoded(convergence([run]), "png")))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 2 and dict(matplotlib.rcParams) == before


def test_many_nodes_stay_a_small_file(tmp_path):
    run = make_run(tmp_path / "huge", width=4096)
    assert len(encoded(nodes([run]), "svg")) < 300_000


# --- the command ----------------------------------------------------------------------------------


def test_the_command_writes_every_figure_in_both_forms(said, run, tmp_path):
    out = tmp_path / "made" / "here"
    code, printed, err = said("figures", run.folder, "--out", out)
    assert (code, err) == (0, "") and printed.endswith(f"written to {out}\n")
    stems = [entry.stem for entry in CATALOGUE.values()]
    assert sorted(path.name for path in out.iterdir()) == sorted(
        f"{stem}.{form}" for stem in stems for form in ("png", "svg")
    )
    assert stems[4] == "fig05_masks" and "Fig. 5: fig05_masks.png fig05_masks.svg" in printed
    with Image.open(out / "fig08_convergence.png") as image:
        assert image.width == 1300 and image.info["dpi"][0] == pytest.approx(200, abs=0.1)


def test_what_cannot_be_drawn_is_said(said, tmp_path):
    run = make_run(tmp_path / "drop", method="dropout")
    asked = ("--format", "svg", "--only", 5, 8, 9, 10, 11)
    code, printed, err = said("figures", run.folder, "--out", tmp_path / "f", *asked)
    assert code == 1 and "Fig. 8: fig08_convergence.svg" in printed
    reason = "needs a run with Blockout that learns P, and there is only drop (dropout)"
    assert err.splitlines() == [
        f"Fig. {number} cannot be drawn: {reason}" for number in (5, 9, 10, 11)
    ]


def test_a_run_that_still_trains_is_named(said, tmp_path):
    run = make_run(tmp_path / "young", finished=False)
    code, printed, err = said(
        "figures", run.folder, "--out", tmp_path / "f", "--only", 9, 11, "--format", "png"
    )
    assert code == 1 and "Fig. 9: fig09_distributions.png" in printed
    assert "needs a finished run with Blockout, and young (blockout) still trains" in err


def test_without_runs_there_are_the_diagrams(said, tmp_path):
    code, printed, _ = said("figures", "--out", tmp_path, "--format", "svg")
    drawn = [path.name[:5] for path in sorted(tmp_path.iterdir())]
    assert code == 0 and drawn == ["fig01", "fig02", "fig03", "fig04", "fig06", "fig07"]
    assert "Fig. 8 cannot be drawn: needs a run, and none was given" in printed


@pytest.mark.parametrize(
    ("arguments", "code", "said_so"),
    [
        (["nowhere"], 1, "there is no run folder"),
        (["RUN", "--only", "12"], 2, "--only must be numbers of figures, 1 to 11, got 12"),
        (["RUN", "--format", "pdf"], 2, "'pdf'"),
        (["RUN", "--classes", "catt"], 1, "no given run has a class 'catt'; did you mean cat?"),
        (["RUN", "--out", "FILE"], 1, "name another with --out"),
    ],
)
def test_wrong_input_is_answered_in_a_line(said, run, tmp_path, arguments, code, said_so):
    (tmp_path / "file").write_text("")
    places = {"RUN": run.folder, "FILE": tmp_path / "file", "nowhere": tmp_path / "nowhere"}
    words = [places.get(word, word) for word in arguments]
    words += [] if "--out" in arguments else ["--out", tmp_path / "f"]
    found, _, err = said("figures", *words)
    assert found == code and said_so in err
    assert "Traceback" not in err


def test_out_is_required(said, run):
    code, _, err = said("figures", run.folder)
    assert code == 2 and "--out" in err


def test_a_full_disk_leaves_nothing_half_written(said, run, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    code, _, err = said("figures", run.folder, "--out", tmp_path / "f", "--only", 2)
    assert code == 1 and "No space left" in err and "--out" in err and "--run" not in err
    assert list((tmp_path / "f").iterdir()) == []


def test_two_classes_one_cluster_and_no_groups_are_drawn_too(run):
    p = {"P_0": np.ones((4, 1)), "P_1": np.zeros((4, 1)), "P_2": np.array([[0.2], [0.7]])}
    about = run.about | {"classes": ["yes", "no"], "groups": None}
    small = replace(run, about=about, memberships=p)
    assert telling_classes(small) == [0, 1]
    assert [bar.get_height() for bar in classes([small]).axes[0].patches[:2]] == [0.2, 0.7]
    assert "1. yes" in text_of(nodes([small]))
