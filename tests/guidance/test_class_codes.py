"""SimilarityOfClasses of classes, and codes that fit it."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from blockout.guidance.class_codes import balanced, fitting_codes, similarity_of


def test_similarity_is_that_of_centred_means():
    means = torch.randn(6, 4, dtype=torch.float64) + 100
    s = similarity_of(means)
    centred = means - means.mean(0)
    for a, b in itertools.combinations(range(6), 2):
        cosine = F.cosine_similarity(centred[a], centred[b], dim=0)
        others = [
            F.cosine_similarity(centred[i], centred[j], dim=0)
            for i, j in itertools.permutations(range(6), 2)
        ]
        torch.testing.assert_close(s[a, b], cosine - sum(others) / 30)
    assert (s.diagonal() == 0).all()


def groups_of(*sizes: int) -> torch.Tensor:
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def alike_by(groups: torch.Tensor, noise: float = 0.0, seed: int = 0) -> torch.Tensor:
    """A similarity that is high within groups."""
    chance = torch.randn(len(groups), len(groups), generator=torch.Generator().manual_seed(seed))
    table = (groups[:, None] == groups[None]).float() + noise * (chance + chance.T)
    table.fill_diagonal_(0)
    return table


@given(
    seed=st.integers(0, 2**31), n=st.integers(1, 12), clusters=st.integers(1, 6),
    budget=st.sampled_from([0.2, 1.0, 1.3, 2.0, 9.0]),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_every_class_has_a_cluster_and_all_together_keep_the_budget(seed, n, clusters, budget):
    chance = torch.Generator().manual_seed(seed)
    codes = fitting_codes(
        similarity_of(torch.randn(n, 5, generator=chance)), clusters=clusters, budget=budget
    )
    assert codes.shape == (n, clusters)
    assert set(codes.unique().tolist()) <= {0.0, 1.0}
    assert (codes.sum(1) >= 1).all()
    assert codes.sum() <= max(budget, 1) * n + 1e-6


@pytest.mark.parametrize(("sizes", "clusters"), [((4, 4, 4, 4, 4), 6), ((4, 4, 4, 4, 4), 5),
                                                 ((10, 3, 5), 3), ((2, 2), 8)])  # fmt: skip
@pytest.mark.parametrize("seed", [0, 1])
def test_groups_get_a_code_of_their_own_however_many_and_uneven(sizes, clusters, seed):
    groups = groups_of(*sizes)
    codes = fitting_codes(balanced(alike_by(groups, noise=0.1, seed=seed)), clusters, budget=1.5)
    same = (codes[:, None] == codes[None]).all(-1)
    assert torch.equal(same, groups[:, None] == groups[None])


def test_more_groups_than_clusters_stay_whole_and_share_the_clusters_evenly():
    groups = groups_of(*[5] * 20)
    codes = fitting_codes(alike_by(groups, noise=0.05), clusters=6, budget=2)
    same = (codes[:, None] == codes[None]).all(-1)
    assert same[groups[:, None] == groups[None]].all()
    assert codes.sum(0).max() <= 25


def test_codes_fit_better_than_those_of_random_classes_and_the_seed_decides():
    torch.manual_seed(0)
    table = similarity_of(torch.randn(30, 4))
    beside = ~torch.eye(30, dtype=torch.bool)

    def fit(codes: torch.Tensor) -> float:
        alike = similarity_of(codes)
        return float(torch.corrcoef(torch.stack([alike[beside], table[beside]]))[0, 1])

    codes = fitting_codes(table, clusters=6, budget=1.5)
    assert torch.equal(codes, fitting_codes(table, clusters=6, budget=1.5))
    others = [fit(codes[torch.randperm(30)]) for _ in range(20)]
    assert fit(codes) > 0.5 > max(others)


def test_where_nothing_is_alike_clusters_are_shared_out_evenly():
    assert fitting_codes(torch.zeros(7, 7), 3, 1).sum(0).tolist() == [3, 2, 2]
    assert fitting_codes(torch.zeros(1, 1), 3, 1).sum() == 1
    assert fitting_codes(alike_by(groups_of(2, 2)), 1, 1).tolist() == [[1.0]] * 4


@given(seed=st.integers(0, 2**31), moved=st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_clusters_keep_their_numbers_where_classes_stay(seed, moved):
    """Groups that change little are found in the clusters they had, whatever their numbers."""
    chance = torch.Generator().manual_seed(seed)
    groups = groups_of(5, 5, 5, 5)
    near = torch.eye(4)[torch.randperm(4, generator=chance)][groups]
    now = groups.clone()
    now[:moved] = 1
    found = fitting_codes(alike_by(now), 4, budget=1, near=near, seed=seed % 7)
    assert (found != near).any(1).sum() == moved


def test_where_the_price_has_no_time_to_rise_the_budget_holds_all_the_same(monkeypatch):
    monkeypatch.setattr("blockout.guidance.class_codes.SWEEPS", 1)
    for seed in range(10):
        chance = torch.Generator().manual_seed(seed)
        table = similarity_of(torch.randn(12, 3, generator=chance))
        codes = fitting_codes(table, clusters=6, budget=1.2, seed=seed)
        assert (codes.sum(1) >= 1).all() and codes.sum() <= 1.2 * 12


def test_codes_that_fit_are_kept_rather_than_others_that_fit_about_as_well():
    for seed in range(5):
        chance = torch.Generator().manual_seed(seed)
        table = similarity_of(torch.randn(30, 8, generator=chance))
        first = fitting_codes(table, clusters=6, budget=1.5, seed=seed)
        again = fitting_codes(table, clusters=6, budget=1.5, near=first, seed=seed + 100)
        assert (again == first).all(1).float().mean() > 0.9


def test_codes_hardly_depend_on_where_the_search_starts():
    """The best of all starts alone gives a mean correlation of 0.72 here."""
    beside = ~torch.eye(100, dtype=torch.bool)
    agreed = []
    for seed in range(5):
        chance = torch.Generator().manual_seed(seed)
        means = torch.randn(100, 12, generator=chance) + torch.randn(100, 12, generator=chance)
        table = similarity_of(means)
        pair = [similarity_of(fitting_codes(table, 6, 1.5, seed=start)) for start in (1, 2)]
        agreed.append(torch.corrcoef(torch.stack([alike[beside] for alike in pair]))[0, 1])
    assert torch.stack(agreed).mean() > 0.82
