"""Chooses a code (a subset of clusters) per class, so that similar classes have similar codes."""

import math
from itertools import combinations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import normalize

CROWDING = 0.5
"""Price of a cluster, times the share of other classes in it. Evens out the sizes of clusters, and
keeps classes from taking a second cluster for little gain."""
STARTS, FEWEST_STARTS = 64, 8
"""How many random starts the search makes. The fewer, the more is found by chance."""
MOST_AT_ONCE = 64_000
"""Numbers that all starts together hold: with many classes or candidates there are fewer."""
GOOD = 0.5
"""Codes that have this share of the best quality count in what all agree on."""
TINY = 1e-9
"""Less is zero but for rounding."""
LOYALTY = 0.05
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

    Each class has a cluster, and classes have at most ``budget`` clusters on average. From many
    random starts, each class in turn takes the code with the smallest squared error, until none
    changes. Each start ends elsewhere, and which end fits best is nearly chance: the search is
    repeated for what they agree on, the mean similarity of their codes. ``near`` are earlier codes,
    which only clearly better ones replace. Clusters are numbered so that most classes keep theirs.

    >>> similarity = similarity_of(torch.tensor([[1., 0.], [1., 0.], [0., 1.], [0., 1.]]))
    >>> code = fitting_codes(similarity, clusters=2, budget=1)
    >>> bool((code[0] == code[1]).all()), bool((code[0] == code[2]).any()), code.sum(1).tolist()
    (True, False, [1.0, 1.0, 1.0, 1.0])
    """
    n = len(similarity)
    target = similarity.to("cpu", torch.float64)
    beside = _off_diagonal(n)
    if n < 2 or clusters < 2 or float(target[beside].std()) == 0:
        return _in_turn(n, clusters).to(similarity)
    target = (target / target[beside].std()).round(decimals=DIGITS)
    candidates = _candidates(clusters, budget)
    chance = torch.Generator().manual_seed(seed)
    each = candidates.numel() + n * clusters
    count = min(max(MOST_AT_ONCE // each, FEWEST_STARTS), STARTS)
    starts = candidates[torch.randint(len(candidates), (count, n), generator=chance)]
    first = _Search(target, candidates, starts, budget)
    first.run(chance)
    quality = first.quality()
    good = quality >= quality.max() - (1 - GOOD) * quality.max().abs()
    units = first.unit[good].transpose(0, 1).flatten(1)  # (classes, good starts * clusters)
    agreed = balanced(units @ units.T / int(good.sum()))
    spread = agreed[beside].std()
    agreed = (agreed / spread).round(decimals=DIGITS) if spread > TINY else target
    search = _Search(agreed, candidates, starts[: count // 4], budget)
    search.run(chance)
    found = search.codes[_first_best(search.quality())]
    if near is not None:
        both = torch.stack([near.to(target), found])
        worth = _Search(agreed, candidates, both, budget).quality()
        kept = float(worth[0]) + LOYALTY > float(worth[1])
        found = both[0] if kept else found[:, _numbering(both[0].T @ found)]
    return found.to(similarity)


class _Search:
    """Coordinate descent over codes, with a price per membership that enforces the budget.

    From many starts at once: the steps are small, so together they take hardly longer than one.
    """

    def __init__(
        self,
        target: Table,
        candidates: Codes,
        starts: Float[Tensor, "starts classes clusters"],
        budget: float,
    ) -> None:
        self.target, self.candidates, self.budget = target, candidates, budget
        self.codes = starts.clone()
        self.price = starts.new_zeros(len(starts))

    def run(self, chance: torch.Generator) -> None:
        n, moving = len(self.target), torch.ones(len(self.codes), dtype=torch.bool)
        for _ in range(SWEEPS):
            before = self.codes.clone()
            self._look()
            for a in torch.randperm(n, generator=chance).tolist():
                self._take(a, _first_best(self._worth(slice(a, a + 1))[:, 0]), moving)
            over = self.codes.sum((1, 2)) / n - self.budget
            self.price = torch.where(moving, (self.price + over).clamp_min(0), self.price)
            moving &= (over > 0) | (self.codes != before).any(2).any(1)
            if not moving.any():
                break
        for i in range(len(self.codes)):
            alone = _Search(self.target, self.candidates, self.codes[i : i + 1], self.budget)
            alone.price = self.price[i : i + 1]
            self.codes[i] = alone.within_budget()

    def quality(self) -> Float[Tensor, " starts"]:
        """The mean worth of the codes, without the price; see ``_worth``."""
        self._look()
        explained = 2 * self.scale * self.fits - self.scale.square() * self.size
        crowded = self.codes.mean(1).square().sum(1)
        return explained / len(self.target) ** 2 - CROWDING * crowded

    def _look(self) -> None:
        """Updates the mean code, which stays the same within a sweep.

        ``fits`` and ``size`` are sums over pairs of classes: similarity of codes times target, and
        its square.
        """
        mean = self.codes.mean(1, keepdim=True)
        self.unit = normalize(self.codes - mean, dim=2)
        self.options = normalize(self.candidates - mean, dim=2)
        self.spread = self.unit.mT @ self.unit
        own = self.unit.square().sum(2)
        self.fits = ((self.target @ self.unit) * self.unit).sum((1, 2))
        self.size = self.spread.square().sum((1, 2)) - own.square().sum(1)
        fitting = (self.fits / self.size.clamp_min(TINY)).clamp_min(1.0)
        self.scale = torch.where(self.size > TINY, fitting, 1.0)

    def _worth(self, rows: slice) -> Float[Tensor, "starts rows candidates"]:
        """Of each code for these classes: how far it reduces the squared error, minus its price."""
        n, own = len(self.target), self.unit[:, rows]
        agrees = (self.target[rows] @ self.unit) @ self.options.mT
        size = ((self.options @ self.spread) * self.options).sum(2)[:, None]
        size = size - (own @ self.options.mT).square()
        load = (self.codes.sum(1, keepdim=True) - self.codes[:, rows]) / n
        paid = (CROWDING * load + self.price[:, None, None]) @ self.candidates.T
        scale = self.scale[:, None, None]
        return (2 * scale * agrees - scale.square() * size) / n - paid

    def _take(
        self, a: int, choices: Int64[Tensor, " starts"], moving: Bool[Tensor, " starts"]
    ) -> None:
        every = torch.arange(len(choices))
        old, new = self.unit[:, a], self.options[every, choices]
        new = torch.where(moving[:, None], new, old)
        self.spread += new[:, :, None] * new[:, None] - old[:, :, None] * old[:, None]
        self.unit[:, a] = new
        chosen = self.candidates[choices]
        self.codes[:, a] = torch.where(moving[:, None], chosen, self.codes[:, a])

    def within_budget(self) -> Codes:
        """The codes of a single start; where the price did not suffice, the class that loses least
        takes a smaller one."""
        codes, sizes = self.codes[0], self.candidates.sum(1)
        while float(codes.sum()) > max(self.budget, 1.0) * len(codes) + 1e-9:
            self._look()
            worth, used = self._worth(slice(None))[0], codes.sum(1, keepdim=True)
            smaller = worth.where((sizes < used) & (used > 1), -math.inf)
            now = worth.where((codes @ self.candidates.T == sizes) & (sizes == used), -math.inf)
            a = int(_first_best(smaller.amax(1) - now.amax(1)))
            codes[a] = self.candidates[_first_best(smaller[a])]
        return codes


def _first_best(worth: Float[Tensor, "... n"]) -> Int64[Tensor, " ..."]:
    """Along the last dimension; those that are tied with the best count as best."""
    return (worth > worth.amax(-1, keepdim=True) - TIED).int().argmax(-1)


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
