"""Chooses dense blocks that hold all connections: one per code, merged where that is faster."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from blockout.graph.liveness import Codes

Seconds = TypeVar("Seconds", float, Tensor)

MOST_GROUPS = 64
"""Codes that start as a block of their own: all codes of six clusters. Rarer codes join one."""


@dataclass(frozen=True)
class Work:
    """The amount of work per pair of nodes."""

    positions: int
    """Examples, times the height and width of a convolution's output."""
    features_per_node: int = 1
    kernel: int = 1


@dataclass(frozen=True)
class Costs:
    """Estimated seconds per operation, used where nothing is measured.

    A product costs one call plus arithmetic or the reading of weights, whichever takes longer.
    Nodes that are not contiguous must be copied. The defaults describe two cores of a 2023 server;
    only their ratios matter. ``Costs(call=0, value=0)`` gives blocks without zeros.
    """

    call: float = 8e-6
    """The overhead of one operation, whatever its size."""
    multiply_add: float = 1.5e-11
    weight: float = 2e-10
    """Reading one weight from memory."""
    value: float = 5e-10
    """Copying one value of an input or output."""

    def product(self, rows: Seconds, columns: Seconds, work: Work) -> Seconds:
        weights = rows * columns * (work.features_per_node * work.kernel)
        return self.call + weights * max(work.positions * self.multiply_add, self.weight)

    def copy(self, nodes: Seconds, work: Work) -> Seconds:
        return self.call + nodes * (work.positions * work.features_per_node * self.value)


@dataclass(frozen=True)
class Block:
    """Some outputs and the inputs that they read, as positions in the given order."""

    rows: Int[Tensor, " rows"]
    columns: Int[Tensor, " columns"]
    cluster: int | None = None
    """Holds only connections whose first shared cluster this is; None holds all of them."""

    @property
    def start(self) -> int | None:
        """The first column if the columns are contiguous; None if they must be gathered."""
        first, last = int(self.columns[0]), int(self.columns[-1])
        return first if last - first + 1 == len(self.columns) else None


@dataclass(frozen=True)
class Cover:
    """Blocks that together hold each connection once, and the seconds they should take."""

    blocks: tuple[Block, ...]
    seconds: float


def covers(codes_out: Codes, codes_in: Codes, work: Work, costs: Costs) -> list[Cover]:
    """A few covers worth trying, the one that should be fastest first.

    Starting from one block per code, each step merges the two blocks that save the most time, until
    one block is left. Every row must read something. It lies in exactly one block of a cover, which
    has all columns that share a cluster with it; for other columns the block holds zeros.

    >>> codes = torch.tensor([[1, 0], [0, 1], [1, 0]], dtype=torch.bool)
    >>> exact = covers(codes, codes, Work(positions=1), Costs(call=0, value=0))[0]
    >>> [(block.rows.tolist(), block.columns.tolist()) for block in exact.blocks]
    [([0, 2], [0, 2]), ([1], [1])]
    """
    inputs = _Inputs(codes_in, work, costs)
    kinds, kind = codes_out.unique(dim=0, return_inverse=True)
    count = torch.bincount(kind, minlength=len(kinds)).double()
    steps = list(_mergings(kinds.double(), count, inputs))
    best = min(range(len(steps)), key=lambda i: steps[i][1])
    groups = len(steps) - best
    sizes = dict.fromkeys([groups, groups // 2, groups // 4, 2 * groups])
    found = []
    for size in sizes:
        if 1 <= size <= len(steps):
            label, seconds = steps[len(steps) - size]
            members = [(label[kind] == g).nonzero().flatten() for g in label.unique().tolist()]
            blocks = [Block(m, inputs.columns(codes_out[m].any(0), len(m))) for m in members]
            found.append(Cover(tuple(sorted(blocks, key=lambda b: int(b.rows[0]))), seconds))
    return found


def cover_by_cluster(codes_out: Codes, codes_in: Codes, work: Work, costs: Costs) -> Cover | None:
    """One block per cluster; outputs are sums over blocks. None if no row is in two blocks.

    Two nodes that share several clusters are connected in the first of them; other blocks hold a
    zero there. This gives few, large blocks where most nodes have a code of their own.

    >>> codes = torch.tensor([[1, 0], [1, 1], [0, 1]], dtype=torch.bool)
    >>> cover = cover_by_cluster(codes, codes, Work(positions=1), Costs())
    >>> [(block.rows.tolist(), block.columns.tolist()) for block in cover.blocks]
    [([0, 1], [0, 1]), ([1, 2], [1, 2])]
    """
    blocks, seconds = [], 0.0
    for cluster in range(codes_out.shape[1]):
        owned = first_shared(codes_out, codes_in, cluster)
        if owned.any():
            sides = [owned.any(side).nonzero().flatten() for side in (1, 0)]
            blocks.append(Block(*sides, cluster=cluster))
            seconds += float(costs.product(len(sides[0]), len(sides[1]), work))
            seconds += float(costs.copy(len(sides[1]), work)) * (blocks[-1].start is None)
    total = sum(len(block.rows) for block in blocks)
    if total == len(codes_out):
        return None
    return Cover(tuple(blocks), seconds + 2 * float(costs.copy(total, work)))


def first_shared(codes_out: Codes, codes_in: Codes, cluster: int) -> Bool[Tensor, "rows columns"]:
    """Which rows and columns share this cluster and no earlier one."""
    shared = codes_out[:, : cluster + 1].float() @ codes_in[:, : cluster + 1].float().T > 0
    return shared & ~(codes_out[:, :cluster].float() @ codes_in[:, :cluster].float().T > 0)


def chain_order(codes: Codes) -> Int[Tensor, " nodes"]:
    """Nodes sorted by code, each code followed by the most similar one, so that blocks touch.

    >>> codes = torch.tensor([[1, 0], [0, 1], [1, 1], [1, 0]], dtype=torch.bool)
    >>> chain_order(codes)
    tensor([0, 3, 2, 1])
    """
    kinds, kind = codes.unique(dim=0, return_inverse=True)
    size = torch.bincount(kind, minlength=len(kinds)).double()
    place = torch.arange(len(kinds)).flip(0)
    if len(kinds) <= 8 * MOST_GROUPS:
        shared = kinds.double() @ kinds.double().T
        union = (kinds[:, None] | kinds).sum(2)
        likeness = shared / union.clamp_min(1) + 1e-6 * size / size.sum()
        last = int(size.argmax())
        for step in range(len(kinds)):
            place[last] = step
            likeness[:, last] = -1
            last = int(likeness[last].argmax())
    return place[kind].argsort(stable=True)


class _Inputs:
    """The columns by code, and what a block that reads some of them costs."""

    def __init__(self, codes: Codes, work: Work, costs: Costs) -> None:
        self.codes, self.work, self.costs = codes, work, costs
        self.kinds, kind = codes.unique(dim=0, return_inverse=True)
        self.size = torch.bincount(kind, minlength=len(self.kinds)).double()
        by_kind = kind.argsort(stable=True)
        ends = self.size.cumsum(0).long()
        self.first = by_kind[ends - self.size.long()].double()
        self.last = by_kind[ends - 1].double()

    def seconds(
        self, codes: Float[Tensor, "n clusters"], rows: Float[Tensor, " n"]
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Of blocks whose rows have these codes: with gathered inputs, and with a range."""
        hit = codes @ self.kinds.double().T > 0
        many = float(len(self.codes))
        first = torch.where(hit, self.first, many).amin(1)
        last = torch.where(hit, self.last, -1.0).amax(1)
        chosen = hit.double() @ self.size
        gathered = self.costs.product(rows, chosen, self.work) + self.costs.copy(chosen, self.work)
        return gathered, self.costs.product(rows, last - first + 1, self.work)

    def columns(self, code: Bool[Tensor, " clusters"], rows: int) -> Int[Tensor, " columns"]:
        """What a block reads: the columns it needs, or the range around them if that is faster."""
        needed = (self.codes & code).any(1).nonzero().flatten()
        gathered, whole_range = self.seconds(code[None].double(), torch.tensor([float(rows)]))
        if float(whole_range) < float(gathered):
            return torch.arange(int(needed[0]), int(needed[-1]) + 1)
        return needed


def _mergings(
    codes: Float[Tensor, "kinds clusters"], rows: Float[Tensor, " kinds"], inputs: _Inputs
) -> Iterator[tuple[Int[Tensor, " kinds"], float]]:
    """The group of each code and the total seconds, from the finest grouping to a single group."""

    def price(codes: Tensor, rows: Tensor) -> Tensor:
        return torch.minimum(*inputs.seconds(codes, rows))

    label, codes, rows = _with_rare_codes_joined(codes, rows, price)
    own = price(codes, rows)
    gain = torch.stack(
        [own + own[i] - price(codes.maximum(codes[i]), rows + rows[i]) for i in range(len(codes))]
    )
    gain.fill_diagonal_(-torch.inf)
    yield label.clone(), float(own.sum())
    for _ in range(len(codes) - 1):
        kept, gone = sorted(divmod(int(gain.argmax()), len(codes)))
        codes[kept] = codes[kept].maximum(codes[gone])
        rows[kept] += rows[gone]
        label[label == gone] = kept
        own[kept], own[gone] = price(codes[kept][None], rows[kept][None])[0], 0
        fresh = own + own[kept] - price(codes.maximum(codes[kept]), rows + rows[kept])
        fresh[gain[kept] == -torch.inf] = -torch.inf
        gain[kept], gain[:, kept] = fresh, fresh
        gain[gone], gain[:, gone] = -torch.inf, -torch.inf
        yield label.clone(), float(own.sum())


def _with_rare_codes_joined(codes: Tensor, rows: Tensor, price) -> tuple[Tensor, Tensor, Tensor]:
    """At most MOST_GROUPS groups: each rarer code joins the group where it costs least."""
    order = rows.argsort(descending=True, stable=True)
    kept, rare = order[:MOST_GROUPS], order[MOST_GROUPS:]
    label = torch.empty(len(codes), dtype=torch.long)
    label[kept] = torch.arange(len(kept))
    groups, sizes = codes[kept].clone(), rows[kept].clone()
    for code in rare.tolist():
        union = groups.maximum(codes[code])
        best = int((price(union, sizes + rows[code]) - price(groups, sizes)).argmin())
        label[code] = best
        groups[best] = union[best]
        sizes[best] += rows[code]
    return label, groups, sizes
