"""Liveness against paths written out, in chains, forks and loops."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from blockout.graph import connected_pairs, living_codes, without_partner

FORK = [("a", "b"), ("b", "c"), ("b", "d"), ("d", "e")]


@st.composite
def codes(draw, names="abcde", clusters=3) -> dict[str, torch.Tensor]:
    row = st.lists(st.booleans(), min_size=clusters, max_size=clusters)
    rows = st.lists(row, min_size=1, max_size=4)
    return {name: torch.tensor(draw(rows)) for name in names}


def shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    return any(a and b for a, b in zip(one.tolist(), other.tolist(), strict=True))


def on_a_whole_path(sets: dict[str, torch.Tensor]) -> dict[str, set[int]]:
    """Nodes on a path from ``a`` to the end of either arm of the fork, path by path."""
    found = {name: set() for name in sets}
    for arm in ("abc", "abde"):
        for path in itertools.product(*(range(len(sets[name])) for name in arm)):
            nodes = [sets[name][node] for name, node in zip(arm, path, strict=True)]
            if all(itertools.starmap(shares, itertools.pairwise(nodes))):
                for name, node in zip(arm, path, strict=True):
                    found[name].add(node)
    return found


@given(codes(), st.permutations(FORK))
def test_a_node_lives_on_a_path_from_the_first_set_to_a_last_one(sets, layers):
    before = {name: own.clone() for name, own in sets.items()}
    alive = living_codes(sets, layers)
    found = {name: set(own.any(1).nonzero().flatten().tolist()) for name, own in alive.items()}
    assert found == on_a_whole_path(sets)
    for name, own in alive.items():
        living = own.any(1)
        assert torch.equal(own[living], sets[name][living])
        assert torch.equal(sets[name], before[name])


def test_death_spreads_backwards_through_several_sets():
    """Cluster 1 ends at d: its nodes in c, b and a have nothing left to feed."""
    both, first = torch.eye(2, dtype=torch.bool), torch.tensor([[True, False]])
    chain = list(itertools.pairwise("abcd"))
    alive = living_codes({"a": both, "b": both, "c": both, "d": first}, chain)
    assert all(alive[name].any(1).tolist() == [True, False] for name in "abc")


def test_a_set_that_feeds_itself_keeps_what_has_a_cluster():
    own = torch.tensor([[True, False], [False, False]])
    assert torch.equal(living_codes({"a": own}, [("a", "a")])["a"], own)


@given(codes("ab"))
def test_pairs_are_counted_one_by_one(sets):
    outputs, inputs = sets["a"], sets["b"]
    pairs = [shares(o, i) for o in outputs for i in inputs]
    assert connected_pairs(outputs, inputs) == sum(pairs)
    alone = [not any(shares(o, i) for i in inputs) for o in outputs]
    assert without_partner(outputs, [inputs]).tolist() == alone
