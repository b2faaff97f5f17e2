"""`blockout figures`."""

import pytest
from PIL import Image

from blockout.show.figures import CATALOGUE

from ..show.figures.made import make_run


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "wide")


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
    reason = "needs a Blockout run that learns P, and there is only drop (dropout)"
    assert err.splitlines() == [
        f"Fig. {number} cannot be drawn: {reason}" for number in (5, 9, 10, 11)
    ]


def test_a_run_that_still_trains_is_named(said, tmp_path):
    run = make_run(tmp_path / "young", finished=False)
    code, printed, err = said(
        "figures", run.folder, "--out", tmp_path / "f", "--only", 9, 11, "--format", "png"
    )
    assert code == 1 and "Fig. 9: fig09_distributions.png" in printed
    assert "needs a finished Blockout run, and young (blockout) is still training" in err


def test_without_runs_there_are_the_diagrams(said, tmp_path):
    code, printed, _ = said("figures", "--out", tmp_path, "--format", "svg")
    drawn = [path.name[:5] for path in sorted(tmp_path.iterdir())]
    assert code == 0 and drawn == ["fig01", "fig02", "fig03", "fig04", "fig06", "fig07"]
    assert "Fig. 8 cannot be drawn: needs a run that has logged something, and none" in printed


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
