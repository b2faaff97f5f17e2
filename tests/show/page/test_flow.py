from blockout.show.page.flow import section

from ..made import layout, made_run, texts, traces


def test_the_flow_runs_from_the_first_nodes_to_the_classes():
    run = made_run(p_0=[[1, 1], [1, 0]], p_1=[[1, 0], [0, 1], [0, 1]])
    (figure,) = section([run]).figures
    headings = [a["text"] for a in layout(figure)["annotations"] if a["y"] == 1.02]
    assert headings == ["<b>P_0</b><br>2 nodes", "<b>P_1</b><br>3 nodes", "<b>P_2</b><br>4 classes"]
    said = [trace["text"] for trace in traces(figure) if trace.get("fill") == "toself"]
    assert "branch 0 + 1 → branch 1: all of the connections" in said
    assert len(said) == 3 + 2
    (classes,) = [trace for trace in traces(figure) if trace.get("meta")]
    assert sorted(c for (c,) in classes["customdata"]) == [0, 1, 2, 3]


def test_names_are_text_and_runs_without_blockout_have_no_flow():
    run = made_run(classes=("<i>x</i>", "b", "c", "d"))
    (figure,) = section([run]).figures
    assert "<i>" not in texts(figure)
    assert section([made_run(None)]) is None
