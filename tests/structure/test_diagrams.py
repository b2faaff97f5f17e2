"""Diagrams read back with the little grammar they use; descriptions hold what they should."""

import dataclasses
import html
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blockout import Structure
from blockout.structure.nodes import Layer, on_one_line

LEVELS = (0.0, 1.0)
CHAIN = (Layer("fc2", "P_0", "P_1"), Layer("fc3", "P_1", "P_2"))
CHAIN_OF_TWO = (Layer("l", "a", "b"),)
ANIMALS = ("cat", "dog", "oak", "fir")
NASTY = [
    'say "cheese"', "<b>bold</b>", "[x](y){z}|", "🦊🐻", "a\nb\tc", "back\\slash\\", "&lt;",
    "#quot;", "`code`", "%% no comment", "end", "--> x", "];", "$$x$$", "\x1b[2J", "",
]  # fmt: skip

DOT_TEXT = r'"((?:[^"\\\n]|\\.)*)"'
DOT = (
    r"digraph blockout \{", r"  rankdir=LR; node \[shape=box\];", r"  subgraph cluster_\d+ \{",
    rf"    label={DOT_TEXT};", rf"    n\d+_\d+ \[label={DOT_TEXT}(, style=dotted)?\];", r"  \}",
    r"  n\d+_\d+ -> n\d+_\d+( \[style=dashed\])?;", r"\}",
)  # fmt: skip
MERMAID_TEXT = r'"((?:[^"#<>&`\\%;$\n]|#\d+;|<br/>)*)"'
MERMAID = (
    r"flowchart LR", rf"  subgraph s\d+\[{MERMAID_TEXT}\]", rf"    n\d+_\d+\[{MERMAID_TEXT}\]",
    r"  end", r"  n\d+_\d+ (-->|-\.->) n\d+_\d+",
)  # fmt: skip


def parsed(text: str) -> tuple[dict[str, list[str]], dict[tuple[str, str], bool]]:
    """Label lines of every box, and whether each edge is whole; every line must be understood."""
    dot = text.startswith("digraph")
    for line in text.splitlines():
        assert any(re.fullmatch(rule, line) for rule in (DOT if dot else MERMAID)), line
    label = rf"^    (n\d+_\d+)\s?\[(?:label=)?{DOT_TEXT if dot else MERMAID_TEXT}"
    unescaped = _from_dot if dot else _from_mermaid
    boxes = {id: unescaped(label) for id, label in re.findall(label, text, re.MULTILINE)}
    edge = r"^  (n\d+_\d+) (->|-->|-\.->) (n\d+_\d+)(.*)$"
    edges = {
        (a, b): arrow != "-.->" and "dashed" not in rest
        for a, arrow, b, rest in re.findall(edge, text, re.MULTILINE)
    }
    return boxes, edges


def _from_dot(label: str) -> list[str]:
    lines = re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], label).split("\n")
    return [html.unescape(line) for line in lines]


def _from_mermaid(label: str) -> list[str]:
    return [re.sub(r"#(\d+);", lambda m: chr(int(m[1])), line) for line in label.split("<br/>")]


@st.composite
def structures(draw, nodes: int = 12) -> Structure:
    clusters = draw(st.integers(1, 4))
    row = st.tuples(*[st.sampled_from(LEVELS)] * clusters)
    sets = [draw(st.lists(row, min_size=1, max_size=nodes)) for _ in range(3)]
    return Structure(tuple((f"P_{j}", tuple(rows)) for j, rows in enumerate(sets)), CHAIN)


def codes_of(lines: list[str]) -> set[int]:
    """Of the title of a box."""
    return set(map(int, re.findall(r"\d+", lines[0])))


@given(structures(), st.sampled_from(["to_dot", "to_mermaid"]))
def test_boxes_are_the_codes_and_edges_connect_those_that_share_a_cluster(structure, form):
    boxes, edges = parsed(getattr(structure, form)(most=99))
    for number, nodes in enumerate(structure.sets.values()):
        mine = {id: lines for id, lines in boxes.items() if id.startswith(f"n{number}_")}
        assert sorted(map(sorted, map(codes_of, mine.values()))) == sorted(
            map(list, nodes.nodes_by_code)
        )
        if number < 2:
            counts = {tuple(sorted(codes_of(b))): int(b[1].split()[0]) for b in mine.values()}
            assert counts == {code: len(n) for code, n in nodes.nodes_by_code.items()}
    assert edges == {
        (a, b): True
        for a in boxes
        for b in boxes
        if int(b[1]) == int(a[1]) + 1 and codes_of(boxes[a]) & codes_of(boxes[b])
    }


@given(structures(nodes=30), st.integers(1, 3), st.sampled_from(["to_dot", "to_mermaid"]))
def test_sets_with_many_codes_are_drawn_by_cluster(structure, most, form):
    boxes, edges = parsed(getattr(structure, form)(most=most))
    for number, nodes in enumerate(list(structure.sets.values())[:2]):
        mine = {id: lines for id, lines in boxes.items() if id.startswith(f"n{number}_")}
        living = {code: n for code, n in nodes.nodes_by_code.items() if code}
        expected = (
            [["no cluster", count(len(nodes.without_cluster))]] if nodes.without_cluster else []
        )
        if len(living) > most:
            expected += [
                [f"in cluster {c}", count(size), f"{len(living.get((c,), ()))} of them in no other"]
                for c, size in enumerate(nodes.cluster_sizes)
                if size
            ]
            assert sorted(mine.values()) == sorted(expected)
        else:
            assert len(mine) == len(living) + bool(nodes.without_cluster)
    for (a, b), whole in edges.items():
        if int(b[1]) < 2:
            assert whole and codes_of(boxes[a]) & codes_of(boxes[b])


def count(nodes: int) -> str:
    return f"{nodes} node{'s' if nodes > 1 else ''}"


def test_many_classes_are_drawn_in_groups_with_dashed_edges_to_a_part_of_a_group():
    p = ((1.0, 0.0, 0.0), (1.0, 0.0, 0.0), (1.0, 0.0, 0.5), (0.0, 1.0, 0.0), (0.0, 0.0, 0.4))
    clusters = tuple(tuple(float(i == j) for j in range(3)) for i in range(3))
    structure = Structure(
        (("P_0", clusters), ("P_1", p)), CHAIN[:1], classes=tuple("abcde"), group_count=3
    )
    groups = [[structure.classes[c] for c in g.members] for g in structure.class_groups]
    assert groups == [["a", "b", "c"], ["d"], ["e"]]
    boxes, edges = parsed(structure.to_dot(most=2))
    assert boxes["n1_0"] == ["group A", "a, b, c"] and boxes["n1_1"] == ["group B", "d"]
    assert boxes["n1_2"] == ["no cluster", "e"]
    assert edges == {("n0_0", "n1_0"): True, ("n0_1", "n1_1"): True, ("n0_2", "n1_0"): False}
    assert parsed(structure.to_mermaid(most=2)) == (boxes, edges)


@pytest.mark.parametrize("form", ["to_dot", "to_mermaid"])
@pytest.mark.parametrize("name", NASTY)
def test_no_name_breaks_a_diagram(form, name):
    p = ((1.0, 0.0), (0.0, 1.0))
    layer = Layer(name, name + "_in", name)
    structure = Structure(((layer.inputs, p), (layer.outputs, p)), (layer,), classes=(name, "x"))
    boxes, edges = parsed(getattr(structure, form)())
    assert boxes["n1_0"] == ["cluster 0", on_one_line(name)]
    assert len(boxes) == 4 and len(edges) == 2


@given(st.text(max_size=20))
def test_any_text_survives_as_a_label(name):
    structure = Structure((("a", ((1.0,),)), ("b", ((1.0,),))), (Layer("l", "a", "b"),))
    structure = dataclasses.replace(structure, classes=(name,))
    for text in (structure.to_dot(), structure.to_mermaid()):
        assert parsed(text)[0]["n1_0"] == ["cluster 0", on_one_line(name)]


def test_a_set_with_many_classes_of_one_code_names_some_and_counts_the_rest():
    p = ((1.0,),) * 40
    structure = Structure((("a", p[:1]), ("b", p)), (Layer("l", "a", "b"),))
    boxes, _ = parsed(structure.to_dot())
    assert boxes["n1_0"] == ["cluster 0", "0, 1, 2, 3", "4, 5, 6, 7", "8, 9, 10, 11", "and 28 more"]


def test_six_clusters_with_every_code_stay_readable():
    p = tuple(tuple(float(n >> c & 1) for c in range(6)) for n in range(64))
    structure = Structure(tuple((f"P_{j}", p) for j in range(3)), CHAIN)
    boxes, edges = parsed(structure.to_dot())
    assert len(boxes) == 2 * (6 + 1) + len(structure.class_groups) + 1  # and the dead of each set
    assert len(edges) <= 6 + 6 * len(structure.class_groups) <= 80


def test_no_boxes_at_all_are_refused():
    structure = Structure((("a", ((1.0,),)), ("b", ((1.0,),))), (Layer("l", "a", "b"),))
    with pytest.raises(ValueError, match="at least one box, got most=0"):
        structure.to_dot(most=0)


# --- in words -----------------------------------------------------------------------------------


def forked() -> Structure:
    """Two branches that share one node of P_0; one dead node in P_1."""
    p_0 = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0))
    p_1 = ((1.0, 0.0), (0.0, 1.0), (0.0, 1.0), (0.0, 0.0))
    p_2 = ((1.0, 0.0), (1.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.0, 1.0))
    names = ("cat", "dog", "\x1b[31mfox\n", "oak", "fir")
    return Structure((("P_0", p_0), ("P_1", p_1), ("P_2", p_2)), CHAIN, classes=names)


def test_the_description_names_groups_branches_dead_nodes_and_what_is_left():
    text = str(forked())
    assert "2 groups of classes" in text
    assert re.search(r"A +3 +cat, dog, \[31mfox\n +\[all in cluster 0 and no other\]", text)
    assert re.search(r"B +2 +oak, fir\n +\[all in cluster 1 and no other\]", text)
    assert re.search(r"P_0 +1 +0 +2 +0\n", text)  # shared by all, several, by one alone, by none
    assert re.search(r"P_1 +0 +0 +3 +1\n", text)
    assert "1 of the 1 pairs of groups share no cluster: A|B" in text
    assert re.search(r"P_1 +outputs of fc2 +4 +1 +0.75 +1 +2\n", text)
    # fc2: node 0 with 2 inputs, nodes 1 and 2 with 2 each; fc3: 3 classes of 1, 2 classes of 2
    assert re.search(r"fc2 +6 +12 +6 +12 +50.0%\n", text)
    assert re.search(r"fc3 +7 +20 +7 +20 +35.0%\n", text)
    assert re.search(r"all +13 +32 +13 +32 +40.6%\n", text)
    assert "41% of the connections are left" in text
    assert "Against the known" not in text and "nothing of the input" not in text


def test_the_description_counts_the_classes_of_a_group_in_each_cluster_and_names_the_lost_ones():
    p = ((0.9, 0.1, 0.5), (0.9, 0.1, 0.4), (0.9, 0.5, 0.5), (0.4, 0.1, 0.1))
    structure = Structure((("a", p), ("b", p)), CHAIN_OF_TWO, classes=ANIMALS, group_count=1)
    text = str(structure)
    assert "[some in cluster 0 (3 classes), 2 (2), 1 (1)]" in text
    assert "Nothing of the input reaches these classes: fir\n" in text
    assert "in no cluster at all" in str(structure.at(1.0))
    assert "[all in clusters 0, 1, 2 and no other]" in str(structure.at(0.1))
    assert "[all in cluster 0; some also in 2 (3 classes), 1 (1)]" in str(structure.at(0.4))


def test_the_description_says_how_groups_agree_with_known_ones():
    text = str(forked().with_taxonomy(["pet"] * 3 + ["tree"] * 2))
    assert re.search(r"adjusted Rand index +1.00 +0.1", text)  # 1 of 10 divisions is as good
    assert re.search(r"AUC of co-membership +1.00 +0.1", text)
    assert "not clearly more similar" in text
    p = torch.eye(5).repeat_interleave(4, 0).tolist()
    clear = Structure((("a", p), ("b", p)), (Layer("l", "a", "b"),)).with_taxonomy(
        [n // 4 for n in range(20)]
    )
    assert "are more similar here" in str(clear)


def test_one_group_one_class_and_nothing_left_are_described():
    single = Structure((("a", ((0.2,),)), ("b", ((0.2,),))), (Layer("conv", "a", "b", 9, None),))
    text = str(single)
    assert "1 group of classes" in text and "in no cluster at all" in text
    assert "0% of the connections" in text and "for one output position" in text


def test_of_many_clusters_the_sizes_of_the_first_are_shown():
    p = tuple(tuple(float(i == j) for j in range(20)) for i in range(20))
    text = str(Structure((("a", p), ("b", p)), CHAIN_OF_TWO))
    assert re.search(r"in cluster 0( +\d+){11}  \.\.\.\n", text)
    assert re.search(r"inputs of l +20 +0 +1.00( +1){12}\n", text)


def test_no_name_is_broken_over_two_lines():
    p = ((1.0,),) * 40
    names = tuple(f"a long name {n}" for n in range(40))
    text = str(Structure((("a", p), ("b", p)), (Layer("l", "a", "b"),), classes=names))
    assert all(name in text for name in names)


def test_a_long_group_is_cut_with_a_count():
    p = ((1.0,),) * 70
    text = str(Structure((("a", p[:1]), ("b", p)), (Layer("l", "a", "b"),), group_count=1))
    assert "59 and 10 more" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 130
