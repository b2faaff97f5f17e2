"""Structures against plain loops; where they come from, and what is refused."""

import copy
import dataclasses
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import blockout
from blockout import Structure
from blockout.structure.nodes import Layer

LEVELS = (0.0, 0.1, 0.25, 0.5, 0.7, 0.75, 1.0)
CHAIN = (Layer("fc2", "P_0", "P_1"), Layer("fc3", "P_1", "P_2", weights_per_pair=9, positions=4))
ANIMALS = ("cat", "dog", "oak", "fir")
P_ANIMALS = ((0.9, 0.1), (0.8, 0.2), (0.1, 0.7), (0.2, 0.9))


@st.composite
def structures(draw) -> Structure:
    clusters = draw(st.integers(1, 4))
    row = st.tuples(*[st.sampled_from(LEVELS)] * clusters)
    sets = [draw(st.lists(row, min_size=1, max_size=6)) for _ in range(3)]
    memberships = tuple((f"P_{j}", tuple(rows)) for j, rows in enumerate(sets))
    return Structure(memberships, CHAIN, threshold=draw(st.sampled_from(LEVELS)))


def belongs(structure: Structure, name: str, node: int) -> set[int]:
    """Clusters of a node; P is compared as the decimal that it was given as."""
    row = dict(structure.memberships)[name][node]
    return {c for c, p in enumerate(row) if round(p, 6) >= structure.threshold}


def connected(structure: Structure, layer: Layer) -> set[tuple[int, int]]:
    sets = dict(structure.memberships)
    return {
        (i, o)
        for i in range(len(sets[layer.inputs]))
        for o in range(len(sets[layer.outputs]))
        if belongs(structure, layer.inputs, i) & belongs(structure, layer.outputs, o)
    }


def animals(**changes) -> Structure:
    sets = (("P_0", P_ANIMALS[:3]), ("P_1", P_ANIMALS))
    return dataclasses.replace(
        Structure(sets, (Layer("fc", "P_0", "P_1"),), classes=ANIMALS), **changes
    )


# --- facts ------------------------------------------------------------------------------------


@given(structures())
def test_codes_branches_and_dead_nodes_are_those_of_plain_loops(structure):
    for name, rows in structure.memberships:
        nodes = structure.sets[name]
        expected = [tuple(sorted(belongs(structure, name, n))) for n in range(len(rows))]
        assert list(nodes.codes) == expected
        assert nodes.assignments.tolist() == [
            [c in code for c in range(len(rows[0]))] for code in expected
        ]
        assert list(nodes.without_cluster) == [n for n, code in enumerate(expected) if not code]
        assert list(nodes.cluster_sizes) == [
            sum(c in code for code in expected) for c in range(len(rows[0]))
        ]
        assert {code: list(found) for code, found in nodes.nodes_by_code.items()} == {
            code: [n for n, other in enumerate(expected) if other == code] for code in expected
        }
        counts = [len(found) for found in nodes.nodes_by_code.values()]
        assert counts == sorted(counts, reverse=True)


def left(structure: Structure) -> list[set[tuple[int, int]]]:
    """The pairs of both layers that lie on a path from an input to an output, path by path."""
    first, second = (connected(structure, layer) for layer in CHAIN)
    paths = [(a, b, c) for a, b in first for b_too, c in second if b == b_too]
    return [{(a, b) for a, b, _ in paths}, {(b, c) for _, b, c in paths}]


@given(structures())
def test_weights_and_multiply_adds_count_the_pairs_that_share_a_cluster_and_live(structure):
    for layer, cost, expected in zip(
        structure.layers, structure.costs, left(structure), strict=True
    ):
        pairs = len(expected)
        every = structure.sets[layer.inputs].nodes * structure.sets[layer.outputs].nodes
        assert (cost.pairs_before, cost.pairs_after) == (every, pairs)
        kernel, positions = layer.weights_per_pair, layer.positions
        assert (cost.weights_before, cost.weights_after) == (every * kernel, pairs * kernel)
        assert cost.multiply_adds_before == every * kernel * positions
        assert cost.multiply_adds_after == pairs * kernel * positions
        assert cost.left == pairs / every


@given(structures())
def test_the_total_is_the_sum_over_layers(structure):
    total = structure.total
    for name in (f.name for f in dataclasses.fields(total)):
        assert getattr(total, name) == sum(getattr(cost, name) for cost in structure.costs)
    assert total.left == total.weights_after / total.weights_before
    weights = f"{total.weights_after:,} of {total.weights_before:,} weights left"
    assert weights in repr(structure)


@given(structures())
def test_a_node_is_alive_on_a_path_from_an_input_to_an_output(structure):
    first, second = left(structure)
    expected = {
        "P_0": {a for a, _ in first},
        "P_1": {b for b, _ in second},
        "P_2": {c for _, c in second},
    }
    backwards = dataclasses.replace(structure, layers=CHAIN[::-1])
    for alive in (structure.alive, backwards.alive):
        found = {name: set(mask.nonzero().flatten().tolist()) for name, mask in alive.items()}
        assert found == expected


@given(structures(), st.data())
def test_nodes_reached_by_classes_are_those_with_a_path_to_them(structure, data):
    last = range(structure.class_set.nodes)
    chosen = data.draw(st.lists(st.sampled_from(last), unique=True))
    second = {i for i, o in connected(structure, CHAIN[1]) if o in chosen}
    first = {i for i, o in connected(structure, CHAIN[0]) if o in second}
    backwards = dataclasses.replace(structure, layers=CHAIN[::-1])
    for reached in (structure.reached_by(chosen), backwards.reached_by(chosen)):
        found = {name: set(mask.nonzero().flatten().tolist()) for name, mask in reached.items()}
        assert found == {"P_0": first, "P_1": second, "P_2": set(chosen)}


def test_a_threshold_of_zero_leaves_everything_and_one_only_certain_memberships():
    structure = animals().at(0.0)
    assert [cost.left for cost in structure.costs] == [1.0]
    assert structure.sets["P_1"].without_cluster == ()
    nothing = structure.at(1.0)
    assert nothing.sets["P_1"].without_cluster == (0, 1, 2, 3)
    assert nothing.costs[0].pairs_after == 0
    certain = Structure((("a", ((1.0,),)), ("b", ((1.0,), (0.99,)))), (Layer("l", "a", "b"),), 1.0)
    assert certain.sets["b"].codes == ((0,), ())


def test_the_threshold_is_compared_in_float32_as_the_layers_hold_p():
    fc = blockout.BlockoutLinear(2, 2, 1, outputs=fixed([[0.7], [0.69999]]))
    assert Structure.from_model(fc, threshold=0.7).sets["P_1"].codes == ((0,), ())


def test_groups_are_the_largest_first_with_what_all_and_some_of_them_use():
    p = ((0.9, 0.1, 0.0), (0.1, 0.9, 0.1), (0.2, 0.9, 0.6), (0.1, 0.8, 0.0))
    structure = Structure((("in", p), ("out", p)), (Layer("l", "in", "out"),), group_count=2)
    first, second = structure.class_groups
    assert (first.name, first.members, second.name, second.members) == ("A", (1, 2, 3), "B", (0,))
    assert (first.clusters_of_all, first.clusters_of_some) == ((1,), (2,))
    assert first.cluster_sizes == (0, 3, 1)
    assert (second.clusters_of_all, second.clusters_of_some) == ((0,), ())


def test_the_number_of_groups_is_given_or_the_taxonomys_or_what_separates_best():
    assert len(animals().class_groups) == 2
    known = animals(taxonomy=("pet", "pet", "tree", "conifer"))
    assert len(known.class_groups) == 3
    assert len(dataclasses.replace(known, group_count=1).class_groups) == 1
    same = (("P_0", P_ANIMALS), ("P_1", P_ANIMALS[:1] * 2 + P_ANIMALS[3:] * 2))
    assert len(dataclasses.replace(known, memberships=same).class_groups) == 2
    even = Structure((("a", ((0.5,),) * 3), ("b", ((0.5,),) * 3)), (Layer("l", "a", "b"),))
    assert len(even.class_groups) == 1


def test_nearest_classes_come_in_order_without_the_class_itself():
    p = ((1.0, 0.0, 0.0), (0.9, 0.0, 0.1), (0.0, 1.0, 0.0), (0.5, 0.0, 0.5))
    structure = Structure((("a", p), ("b", p)), (Layer("l", "a", "b"),), classes=ANIMALS)
    rows = torch.tensor(p) - torch.tensor(p).mean(0)
    cosine = nn.functional.cosine_similarity(rows[0], rows, dim=1).tolist()
    near = structure.nearest("cat", 3)
    assert [n.name for n in near] == ["dog", "fir", "oak"]
    assert [n.similarity for n in near] == pytest.approx([cosine[1], cosine[3], cosine[2]])
    assert len(structure.nearest("cat", 1)) == 1


@pytest.mark.parametrize(
    ("name", "hint"),
    [("dgo", "did you mean 'dog'?"), ("zebra", "the classes are 'cat', 'dog', 'oak'")],
)
def test_an_unknown_class_is_refused_with_the_nearest_spelling(name, hint):
    with pytest.raises(ValueError, match=f"there is no class '{name}'; .*") as error:
        animals().nearest(name)
    assert hint in str(error.value)


# --- agreement ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "taxonomy",
    [
        ["pet", "pet", "tree", "tree"],
        [7, 7, 3, 3],
        {"fir": "tree", "cat": "pet", "oak": "tree", "dog": "pet", "eel": "fish"},
    ],
)
def test_a_taxonomy_may_be_names_numbers_or_a_mapping(taxonomy):
    agreement = animals().agreement(taxonomy)
    assert (agreement.adjusted_rand, agreement.nmi, agreement.auc) == (1.0, pytest.approx(1), 1.0)
    assert agreement == animals().with_taxonomy(taxonomy).agreement()


def test_a_taxonomy_forms_as_many_groups_as_it_has():
    p = ((1.0, 0.0, 0.0), (0.9, 0.1, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    structure = Structure((("a", p), ("b", p)), (Layer("l", "a", "b"),), classes=ANIMALS)
    assert structure.agreement(["x", "x", "y", "z"]).adjusted_rand == 1
    fixed_count = dataclasses.replace(structure, group_count=2)
    assert fixed_count.agreement(["x", "x", "y", "z"]).adjusted_rand < 1


def test_without_a_taxonomy_there_is_nothing_to_agree_with():
    with pytest.raises(ValueError, match="pass a taxonomy"):
        animals().agreement()
    with pytest.raises(ValueError, match="no group for 'dog', 'fir'"):
        animals().agreement({"cat": 1, "oak": 2})
    with pytest.raises(ValueError, match="entry for each of the 4 nodes of P_1, got 3"):
        animals().agreement([1, 2, 3])


def random_run(seed: int, classes: int = 12) -> Structure:
    p = torch.rand(classes, 4, generator=torch.Generator().manual_seed(seed)).tolist()
    names = tuple(f"c{i}" for i in range(classes))
    return Structure((("P_0", p), ("P_1", p)), (Layer("fc", "P_0", "P_1"),), classes=names)


def test_a_run_agrees_with_itself_whatever_the_order_of_clusters_and_classes():
    run = random_run(0)
    order, p = [3, 1, 0, 2], dict(run.memberships)["P_1"]
    renamed = tuple(tuple(row[c] for c in order) for row in p)
    clusters = dataclasses.replace(run, memberships=(("P_0", renamed), ("P_1", renamed)))
    backwards = dataclasses.replace(
        run, memberships=(("P_0", p), ("P_1", p[::-1])), classes=run.classes[::-1]
    )
    for other in (run, run.at(0.9), clusters, backwards):
        found = run.compare(other)
        assert found.correlation == pytest.approx(1, abs=1e-6)
        assert found.p_value < 0.01
    assert abs(run.compare(random_run(1)).correlation) < 0.9


def test_runs_on_different_classes_are_not_compared():
    with pytest.raises(ValueError, match=r"different classes \('fir', 'yew' in one only\)"):
        animals().compare(animals(classes=("cat", "dog", "oak", "yew")))
    twice = animals(classes=("cat", "cat", "oak", "fir"))
    assert twice.compare(twice).correlation == pytest.approx(1)
    with pytest.raises(ValueError, match="more than once"):
        twice.compare(animals(classes=("cat", "oak", "cat", "fir")))


# --- models -------------------------------------------------------------------------------------


def fixed(p) -> blockout.Memberships:
    p = torch.tensor(p)
    return blockout.Memberships(*p.shape, probability=p, learned=False)


def convolutional() -> nn.Module:
    conv = blockout.BlockoutConv2d(3, 4, 3, clusters=2, padding=1, stride=2)
    fc = blockout.BlockoutLinear(4 * 16, 5, 2, inputs=conv.outputs, features_per_node=16)
    return nn.Sequential(conv, nn.ReLU(), nn.Flatten(), fc)


def test_a_model_gives_its_p_layers_and_kernel_sizes():
    model = convolutional()
    structure = Structure.from_model(model, classes=list("abcde"))
    assert structure.layers == (
        Layer("0", "P_0", "P_1", weights_per_pair=9, positions=None),
        Layer("3", "P_1", "P_2", weights_per_pair=16, positions=1),
    )
    p = torch.tensor(dict(structure.memberships)["P_1"])
    assert torch.equal(p, model[0].outputs.probabilities.detach())
    assert structure.classes == tuple("abcde")
    before = [cost.weights_before for cost in structure.costs]
    assert before == [model[0].weight.numel(), model[3].weight.numel()]


def test_an_input_size_gives_the_multiply_adds_of_a_whole_example():
    model = convolutional().train()
    drawn = copy.deepcopy(model.state_dict())
    structure = Structure.from_model(model, input_size=(3, 8, 8))
    assert [layer.positions for layer in structure.layers] == [16, 1]
    assert structure.costs[0].multiply_adds_before == 3 * 4 * 9 * 16
    assert model.training and not model[0]._forward_hooks
    assert all(torch.equal(model.state_dict()[k], v) for k, v in drawn.items())
    with pytest.raises(ValueError, match=r"cannot take an input of shape \(3, 9, 90\)"):
        Structure.from_model(model, input_size=(3, 9, 90))


def test_a_layer_by_itself_and_a_classifier_listed_first_are_understood():
    assert Structure.from_model(blockout.BlockoutLinear(3, 2, 2)).layers[0].name == "BlockoutLinear"
    fc2 = blockout.BlockoutLinear(3, 4, 2)
    model = nn.ModuleDict({"last": blockout.BlockoutLinear(4, 2, 2, inputs=fc2.outputs)})
    model["first"] = fc2
    structure = Structure.from_model(model, classes=["x", "y"])
    assert structure.class_set.nodes == 2
    assert structure.classes == ("x", "y")


def test_a_model_without_blockout_layers_is_refused():
    with pytest.raises(ValueError, match=r"Linear has no Blockout layers; blockout.convert"):
        Structure.from_model(nn.Linear(2, 2))


def test_memberships_that_ran_away_are_refused():
    fc = blockout.BlockoutLinear(2, 2, 1)
    with torch.no_grad():
        fc.outputs.logits[0] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        Structure.from_model(fc)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"threshold": 1.5}, r"threshold must lie in \[0, 1\], got 1.5"),
        ({"threshold": float("nan")}, r"threshold must lie in \[0, 1\], got nan"),
        ({"threshold": "high"}, "threshold must be a number, got 'high'"),
        ({"classes": ("a", "b")}, "classes must have an entry for each of the 4 nodes"),
        ({"classes": (1, 2, 3, 4)}, "classes must be names"),
        ({"group_count": 5}, "group_count must lie between 1 and the 4 classes, got 5"),
        ({"layers": ()}, "2 sets and 0 layers"),
        ({"layers": (Layer("fc", "P_0", "P_7"),)}, "layer fc names a set of nodes 'P_7'"),
        ({"memberships": (("P_0", ((0.5, 0.5), (0.5,))),)}, "P of P_0 must be rows of equal"),
        ({"memberships": (("P_0", ((0.5, 1.5),)),)}, r"P of P_0 must lie in \[0, 1\], got 1.5"),
        ({"memberships": (("P_0", ()),)}, r"P of P_0 must have shape \(nodes, clusters\)"),
        ({"memberships": (("P_0", ((0.5,),)), ("P_1", P_ANIMALS))}, "P_0 has 1 clusters and P_1 2"),
    ],
)
def test_what_is_no_structure_is_refused(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        animals(**changes)


# --- JSON ---------------------------------------------------------------------------------------


@given(structures(), st.sampled_from([None, 1]), st.text(max_size=8))
def test_json_and_back_is_the_same_structure(structure, group_count, name):
    first = name.encode("utf-8", "replace").decode()
    names = (first, *structure.classes[1:])
    structure = dataclasses.replace(structure, group_count=group_count, classes=names)
    back = Structure.from_json(structure.to_json())
    assert back == structure
    assert hash(back) == hash(structure)


def test_json_keeps_every_float32_exactly():
    p = torch.sigmoid(torch.randn(200, 3) * 8).tolist()
    structure = Structure((("a", p), ("b", p[:2])), (Layer("l", "a", "b"),))
    assert dict(structure.memberships)["a"] == tuple(map(tuple, p))
    assert Structure.from_json(structure.to_json()) == structure


def test_json_says_what_a_reader_may_want_to_know():
    derived = json.loads(animals(taxonomy=("p", "p", "t", "t")).to_json())["derived"]
    assert derived["sets"]["P_1"]["cluster_sizes"] == [2, 2]
    assert derived["sets"]["P_1"]["codes"][0] == {"clusters": [0], "count": 2, "nodes": [0, 1]}
    assert derived["costs"][0]["weights_before"] == 12
    assert derived["costs"][0]["weights_after"] == 6
    assert derived["class_groups"][0]["classes"] == ["cat", "dog"]
    assert derived["agreement"]["auc"] == 1


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "s.json"
    animals().save(path)
    assert Structure.load(path) == animals()
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=r"cannot write .*s\.json: No such file"):
        animals().save(tmp_path / "missing" / "s.json")
    with pytest.raises(OSError, match="Is a directory; choose another file"):
        animals().save(tmp_path / "folder")
    (tmp_path / "folder").rmdir()
    assert [p.name for p in tmp_path.iterdir()] == ["s.json"]


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda d: d.update(version=2), "a structure of version 2, this blockout reads version 1"),
        (lambda d: d.update(format="other"), "is not a structure"),
        (lambda d: d.pop("layers"), "damaged: 'layers' is missing"),
        (lambda d: d.update(memberships=[1]), "is damaged"),
        (lambda d: d.update(classes=3), "is damaged"),
        (lambda d: d["layers"][0].update(colour="red"), "is damaged: layer 0"),
        (lambda d: d["layers"][0].update(inputs=["P_0"]), "is damaged: layer 0"),
        (lambda d: d["layers"][0].pop("name"), "is damaged: layer 0"),
        (lambda d: d["memberships"]["P_1"].pop(), "damaged: classes must have an entry for each"),
        (lambda d: d["memberships"].update(P_1=[["x", 1]]), "damaged: P of P_1 must be rows"),
        (lambda d: d.update(threshold=float("nan")), "damaged: threshold must lie"),
    ],
)
def test_damaged_foreign_and_newer_json_is_refused(damage, complaint, tmp_path):
    document = json.loads(animals().to_json())
    damage(document)
    path = tmp_path / "s.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=complaint):
        Structure.load(path)
    with pytest.raises(ValueError, match=complaint):
        Structure.from_json(path.read_text())


@pytest.mark.parametrize("place", ["_require_sound", "_require_names"])
def test_a_mistake_of_ours_is_not_called_damage(place, monkeypatch):
    def mistake(structure):
        raise TypeError("ours")

    text = animals().to_json()
    monkeypatch.setattr(f"blockout.structure.structure.{place}", mistake)
    with pytest.raises(TypeError, match="ours"):
        Structure.from_json(text)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"format": 1}'])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="the text is not"):
        Structure.from_json(text)


def test_a_structure_written_before_still_loads():
    """As `blockout structure --format json` wrote it before costs counted living nodes only."""
    old = (
        '{"format": "blockout structure", "version": 1, "threshold": 0.5, "group_count": null, '
        '"classes": ["cat", "dog"], "taxonomy": ["pet", "pet"], "layers": [{"name": "fc", '
        '"inputs": "P_0", "outputs": "P_1", "weights_per_pair": 1, "positions": 1}], '
        '"memberships": {"P_0": [[0.9, 0.1]], "P_1": [[0.8, 0.2], [0.1, 0.7]]}, '
        '"derived": {"sets": {"P_0": {"branch_sizes": [1, 0], "dead": []}}}}'
    )
    structure = Structure.from_json(old)
    assert structure.taxonomy == ("pet", "pet") and structure.total.weights_after == 1


def test_memberships_may_be_tensors_and_arrays():
    p = {"P_0": torch.tensor(P_ANIMALS[:3]), "P_1": torch.tensor(P_ANIMALS).numpy()}
    found = Structure.from_memberships(p, [Layer("fc", "P_0", "P_1")], classes=ANIMALS)
    assert found == animals()


def test_a_run_folder_is_refused_with_the_way_to_open_it(tmp_path):
    with pytest.raises(ValueError, match=r"use blockout\.runs\.Run\.open\(.*\)\.structure"):
        Structure.load(tmp_path)


def test_missing_and_binary_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no structure file"):
        Structure.load(tmp_path / "x")
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not a structure in JSON"):
        Structure.load(tmp_path / "b")
