"""Chooses a code (a subset of clusters) per class, so that similar classes have similar codes."""

import math
from itertools import combinations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

CROWDING = 0.5
"""Price of a cluster, times the share of other classes in it. Evens out the sizes of clusters, and
keeps classes from taking a second cluster for little gain."""
STARTS = 8
"""How many random starts the search makes; the best result wins."""
LOYALTY = 0.02
"""How much better new codes must be to replace earlier ones."""
SWEEPS = 30
"""How often each class chooses again, at most."""
TIED = 1e-9
"""Codes whose worth differs by less are tied, and the first wins, whatever the rounding."""
DIGITS = 6
"""Decimals of a similarity that count; later ones depend on the order of a sum."""
MOST_CANDIDATES = 5000
"""The most codes to compare; with very many clusters, only small codes."""

Table = Float[Tensor, "classes classes"]
Codes = Float[Tensor, "classes clusters"]


def similarity_of(means: Float[Tensor, "classes features"]) -> Table:
    """Cosine of centred rows, without its diagonal and its mean.

    >>> similarity_of(torch.tensor([[1., 0.], [1., 0.], [0., 1.], [0., 1.]]))
    tensor([[ 0.0000,  1.3333, -0.6667, -0.6667],
            [ 1.3333,  0.0000, -0.6667, -0.6667],
            [-0.6667, -0.6667,  0.0000,  1.3333],
            [-0.6667, -0.6667,  1.3333,  0.0000]])
    """
    unit = normalize(means - means.mean(0), dim=1)
    return balanced(unit @ unit.T)


def balanced(table: Table) -> Table:
    """Symmetric, with a zero diagonal and mean zero off the diagonal, so pull and push balance."""
    table = (table + table.T) / 2
    beside = _off_diagonal(len(table)).to(table.device)
    mean = table[beside].mean() if len(table) > 1 else table.new_zeros(())
    return torch.where(beside, table - mean, 0.0)


def fitting_codes(
    similarity: Table, clusters: int, budget: float, *, near: Codes | None = None, seed: int = 0
) -> Codes:
    """Codes whose similarity (cosine of centred rows) fits the similarity of classes.

    Each class has a cluster, and classes have at most ``budget`` clusters on average. The search
    finds good codes, not necessarily the best: from several random starts, each class in
    turn takes the code with the smallest squared error, until none changes. One start is ``near``,
    the earlier codes, which only clearly better codes replace. Clusters are numbered so that most
    classes keep theirs.

    >>> similarity = similarity_of(torch.tensor([[1., 0.], [1., 0.], [0., 1.], [0., 1.]]))
    >>> code = fitting_codes(similarity, clusters=2, budget=1)
    >>> bool((code[0] == code[1]).all()), bool((code[0] == code[2]).any()), code.sum(1).tolist()
    (True, False, [1.0, 1.0, 1.0, 1.0])
    """
    n, device = len(similarity), similarity.device
    target = similarity.to("cpu", torch.float64)
    beside = target[_off_diagonal(n)]
    if n < 2 or clusters < 2 or float(beside.std()) == 0:
        return _in_turn(n, clusters).to(similarity)
    target = (target / beside.std()).round(decimals=DIGITS)
    candidates = _candidates(clusters, budget)
    chance = torch.Generator().manual_seed(seed)
    found, best = candidates[:0], -math.inf
    for i in range(STARTS + 1):
        start = candidates[torch.randint(len(candidates), (n,), generator=chance)]
        if i == 0 and near is not None:
            start = near.to(target)
        search = _Search(target, candidates, start, budget)
        search.run(chance)
        loyal = LOYALTY if i == 0 and near is not None else 0
        if search.quality() + loyal > best + TIED:
            found, best = search.codes, search.quality() + loyal
    if near is not None:
        found = found[:, _numbering(near.to(target).T @ found)]
    return found.to(similarity.dtype).to(device)


class _Search:
    """Coordinate descent over codes, with a price per membership that enforces the budget."""

    def __init__(self, target: Table, candidates: Codes, start: Codes, budget: float) -> None:
        self.target, self.candidates, self.budget = target, candidates, budget
        self.codes, self.price = start.clone(), 0.0

    def run(self, chance: torch.Generator) -> None:
        n = len(self.codes)
        for _ in range(SWEEPS):
            before = self.codes.clone()
            self._look()
            for a in torch.randperm(n, generator=chance).tolist():
                self._take(a, _first_best(self._worth(a)))
            over = float(self.codes.sum()) / n - self.budget
            self.price = max(self.price + over, 0.0)
            if over <= 0 and torch.equal(before, self.codes):
                break
        self._keep_budget()

    def quality(self) -> float:
        """The mean worth of the codes, without the price; see ``_worth``."""
        self._look()
        similar = self.unit @ self.unit.T
        similar.fill_diagonal_(0)
        explained = 2 * self.scale * similar * self.target - (self.scale * similar).square()
        crowded = self.codes.mean(0).square().sum()
        return float(explained.mean() - CROWDING * crowded)

    def _look(self) -> None:
        """Updates the mean code, which stays the same within a sweep."""
        self.mean = self.codes.mean(0)
        self.unit = normalize(self.codes - self.mean, dim=1)
        self.options = normalize(self.candidates - self.mean, dim=1)
        self.spread = self.unit.T @ self.unit
        similar = self.unit @ self.unit.T
        similar.fill_diagonal_(0)
        size = float(similar.square().sum())
        self.scale = max(float((similar * self.target).sum()) / size, 1.0) if size else 1.0

    def _worth(self, a: int) -> Float[Tensor, " candidates"]:
        """Of each code for one class: how much it reduces the squared error, minus its price."""
        n, own = len(self.codes), self.unit[a]
        others = self.spread - torch.outer(own, own)
        agrees = self.options @ (self.unit.T @ self.target[a])
        size = ((self.options @ others) * self.options).sum(1)
        load = (self.codes.sum(0) - self.codes[a]) / n
        paid = self.candidates @ (CROWDING * load + self.price)
        return (2 * self.scale * agrees - self.scale**2 * size) / n - paid

    def _take(self, a: int, choice: int) -> None:
        old, new = self.unit[a], self.options[choice]
        self.spread += torch.outer(new, new) - torch.outer(old, old)
        self.codes[a], self.unit[a] = self.candidates[choice], new

    def _keep_budget(self) -> None:
        """Where the price did not suffice, the class that loses least takes a smaller code."""
        sizes = self.candidates.sum(1)
        while float(self.codes.sum()) > max(self.budget, 1.0) * len(self.codes) + 1e-9:
            self._look()
            best: tuple[float, int, int] = (-math.inf, -1, -1)
            for a in (self.codes.sum(1) > 1).nonzero().flatten().tolist():
                worth = self._worth(a).where(sizes < self.codes[a].sum(), -math.inf)
                now = self._worth(a)[(self.candidates == self.codes[a]).all(1)]
                gain = float(worth.max() - now.max())
                if gain > best[0] + TIED:
                    best = (gain, a, _first_best(worth))
            self._take(best[1], best[2])


def _first_best(worth: Float[Tensor, " n"]) -> int:
    return int((worth > worth.max() - TIED).nonzero()[0])


def _numbering(shared: Float[Tensor, "old new"]) -> list[int]:
    """Which new cluster replaces each old one: swaps pairs while that keeps more memberships."""
    order = list(range(len(shared)))
    kept = shared.tolist()
    improved = True
    while improved:
        improved = False
        for a, b in combinations(range(len(order)), 2):
            now = kept[a][order[a]] + kept[b][order[b]]
            if kept[a][order[b]] + kept[b][order[a]] > now:
                order[a], order[b] = order[b], order[a]
                improved = True
    return order


def _candidates(clusters: int, budget: float) -> Codes:
    """All subsets of one or two clusters, and of more if the budget allows."""
    most, count = 1, clusters
    while most < min(clusters, max(2, math.ceil(budget))):
        count += math.comb(clusters, most + 1)
        if count > MOST_CANDIDATES:
            break
        most += 1
    subsets = [s for size in range(1, most + 1) for s in combinations(range(clusters), size)]
    codes = torch.zeros(len(subsets), clusters, dtype=torch.float64)
    for row, subset in zip(codes, subsets, strict=True):
        row[list(subset)] = 1
    return codes


def _in_turn(n: int, clusters: int) -> Codes:
    """One cluster per class in turn, for classes without any similarity."""
    return torch.eye(clusters)[torch.arange(n) % clusters]


def _off_diagonal(n: int) -> Tensor:
    return ~torch.eye(n, dtype=torch.bool)
