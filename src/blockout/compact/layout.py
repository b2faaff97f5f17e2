"""Lays out one layer after another in dense blocks, and assembles the network."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor, nn

from blockout.compact.blocks import DenseBlocks, SparseConv2d, SparseLinear
from blockout.compact.cover import Block, Costs, Work, chain_order, cover_by_cluster, covers
from blockout.compact.survivors import MaskedLayer, Survivors
from blockout.compact.timing import in_turns
from blockout.convert import replace_layer
from blockout.graph import Joint, geometry

WORTHWHILE = 0.8
"""Blocks must take at most this share of the dense layer's time. The margin keeps them from being
slower in other runtimes, where copies cost more."""


@dataclass(frozen=True)
class _Candidate:
    """One way to lay out a layer."""

    module: nn.Module
    rows: Int[Tensor, " rows"]
    """The nodes in the module's output order."""
    blocks: int
    seconds: float


class Plan:
    """Lays out one layer after another, producers first, and replaces the old layers."""

    def __init__(
        self,
        net: nn.Module,
        layers: dict[str, MaskedLayer],
        joints: list[Joint],
        sizes: dict[str, tuple[int, ...]],
        measure: bool,
        costs: Costs,
    ) -> None:
        self.net, self.layers, self.joints, self.sizes = net, layers, joints, sizes
        self.measure, self.costs = measure, costs
        self.survivors = Survivors(net, layers, joints)
        self.order: dict[str, Int[Tensor, " nodes"]] = {}
        self.made: dict[str, nn.Module] = {}

    def carry_out(self) -> nn.Module:
        for name in self.sizes:
            self._lay_out(name)
        for joint in self.joints:
            for norm in joint.norms(self.net).values():
                nodes = len(self.layers[joint.producer].codes_out)
                _keep_channels(norm, self.order[joint.producer], nodes)
        for name in self.layers.keys() - self.sizes.keys():
            self.made[name] = self._plain(name)
        result = self.net
        for name, module in self.made.items():
            old = self.layers[name].plain
            result = replace_layer(result, old, module.train(old.training))
        return result

    def _lay_out(self, name: str) -> None:
        """Chooses the blocks of a Blockout layer, after those of its producer."""
        if name in self.made:
            return
        producer = self.survivors.producer_of.get(name)
        if producer in self.sizes:
            self._lay_out(producer)
        layer = self.layers[name]
        columns = self._inputs(name)
        rows = self.survivors.outputs(name)
        free = name in self.survivors.alive
        if free:
            rows = rows[chain_order(layer.codes_out[rows])]
        size = self._arriving(name, len(columns))
        choices = _candidates(layer, rows, columns, free, size, self.costs)
        chosen, self.order[name] = self._choose(choices, layer, size)
        self.made[name] = chosen

    def _inputs(self, name: str) -> Int[Tensor, " nodes"]:
        """A layer's input nodes in the order in which they arrive."""
        kept = self.survivors.inputs(name)
        producer = self.survivors.producer_of.get(name)
        if producer is None:
            return kept
        if producer not in self.order:  # a plain layer, whose nodes can take any order
            self.order[producer] = kept[chain_order(self.layers[name].codes_in[kept])]
        return self.order[producer]

    def _arriving(self, name: str, nodes: int) -> tuple[int, ...]:
        size, layer = list(self.sizes[name]), self.layers[name]
        size[-1 if isinstance(layer.plain, nn.Linear) else -3] = nodes * layer.per_node
        return tuple(size)

    def _choose(
        self, choices: list[_Candidate], layer: MaskedLayer, size: tuple[int, ...]
    ) -> tuple[nn.Module, Tensor]:
        """The fastest choice, or the dense one (the first) if no other is clearly faster."""
        seconds = [choice.seconds for choice in choices]
        if self.measure and len(choices) > 1:
            chance = torch.Generator().manual_seed(0)
            example = torch.randn(size, generator=chance).to(layer.plain.weight)
            seconds = _measured([choice.module for choice in choices], example)
        fastest = min(range(len(choices)), key=lambda i: seconds[i])
        best = choices[fastest]
        ratio = f"{seconds[0] / seconds[fastest]:.1f} times as fast as dense"
        how = f"measured {ratio}" if self.measure else f"estimated {ratio}"
        kept = f"{100 * float(layer.connected().float().mean()):.0f} % of the connections"
        if len(choices) == 1:
            note = f"dense: all living nodes are connected, {kept} are left"
        elif seconds[fastest] > WORTHWHILE * seconds[0]:
            best, note = choices[0], f"dense: blocks for {kept} would not be worth it; {how}"
        else:
            note = f"{best.blocks} blocks hold {kept}; {how}"
        if len(best.rows) < (nodes := len(layer.codes_out)):
            note += f"; {len(best.rows)} of {nodes} outputs live"
        setattr(best.module, "note", note)  # noqa: B010
        return best.module, best.rows

    def _plain(self, name: str) -> nn.Module:
        """A plain neighbour without the rows and columns of dead nodes."""
        layer = self.layers[name]
        everyone = torch.arange(len(layer.codes_out))
        return _dense(layer, self.order.get(name, everyone), self._inputs(name))


def _candidates(
    layer: MaskedLayer,
    rows: Tensor,
    columns: Tensor,
    free: bool,
    size: tuple[int, ...],
    costs: Costs,
) -> list[_Candidate]:
    """The layer as one dense block; then, if connections are missing, as several blocks."""
    work = _work(layer, size)
    seconds = costs.product(len(rows), len(columns), work)
    found = [_Candidate(_dense(layer, rows, columns), rows, 1, float(seconds))]
    connected = layer.connected(rows, columns)
    fed = connected.any(1)
    if connected.all() or not fed.any():
        return found
    living = fed.nonzero().flatten()
    codes = layer.codes_out[rows[living]], layer.codes_in[columns]
    choices = [*covers(*codes, work, costs), cover_by_cluster(*codes, work, costs)]
    for cover in filter(None, choices):
        blocks = [replace(block, rows=living[block.rows]) for block in cover.blocks]
        if not fed.all():
            blocks.append(Block((~fed).nonzero().flatten(), torch.zeros(1, dtype=torch.long)))
        sums, made = _put_together(blocks, len(rows))
        order = None if free or bool((made.diff() > 0).all()) else made.argsort()
        copies = (len(blocks) > 1) + (order is not None)
        seconds = cover.seconds + copies * float(costs.copy(len(rows), work))
        module = DenseBlocks(
            _modules(layer, blocks, rows, columns),
            [_reads(layer, block) for block in blocks],
            sums=[places.to(layer.plain.weight.device) for places in sums],
            order=None if order is None else order.to(layer.plain.weight.device),
        )
        found.append(_Candidate(module, rows[made] if free else rows, len(blocks), seconds))
    return found


def _put_together(blocks: list[Block], rows: int) -> tuple[list[Tensor], Int[Tensor, " rows"]]:
    """Where the summands of each row lie among the outputs of all blocks, and the order of rows.

    There are no sums if every row has one summand; rows then come in the order of the blocks.
    Otherwise rows with the most summands come first, so that further summands go to the first few.
    """
    made = torch.cat([block.rows for block in blocks])
    if len(made) == rows:
        return [], made
    by_row = made.argsort(stable=True)
    summands = torch.bincount(made, minlength=rows)
    order = summands.argsort(descending=True, stable=True)
    first = summands.cumsum(0) - summands
    sums = []
    for i in range(int(summands.max())):
        with_more = order[summands[order] > i]
        sums.append(by_row[first[with_more] + i])
    return sums, order


def _modules(
    layer: MaskedLayer, blocks: list[Block], rows: Tensor, columns: Tensor
) -> list[nn.Linear | nn.Conv2d]:
    """One plain layer per block; the first block that adds to an output holds its bias."""
    made, seen = [], torch.zeros(len(rows), dtype=torch.bool)
    for block in blocks:
        module = _dense(layer, rows[block.rows], columns[block.columns], block.cluster)
        if module.bias is not None:
            module.bias.data[seen[block.rows].to(module.bias.device)] = 0
        seen[block.rows] = True
        made.append(module)
    return made


def _reads(layer: MaskedLayer, block: Block) -> int | Tensor:
    if block.start is not None:
        return block.start * layer.per_node
    return layer.features(block.columns).to(layer.plain.weight.device)


def _work(layer: MaskedLayer, size: tuple[int, ...]) -> Work:
    if isinstance(layer.plain, nn.Linear):
        return Work(max(1, torch.Size(size[:-1]).numel()), layer.per_node)
    stride = torch.Size(int(s) for s in layer.plain.stride).numel()
    positions = size[0] * torch.Size(size[2:]).numel() // stride
    return Work(max(1, positions), kernel=torch.Size(layer.plain.kernel_size).numel())


def _dense(
    layer: MaskedLayer, rows: Tensor, columns: Tensor, cluster: int | None = None
) -> nn.Linear | nn.Conv2d:
    """A plain layer for these nodes; it keeps its zeros if not all nodes are connected."""
    plain = layer.plain
    weight, full = layer.part(rows, columns, cluster)
    outputs, inputs = weight.shape[:2]
    if isinstance(plain, nn.Linear):
        kind = nn.Linear if full else SparseLinear
        new = kind(inputs, outputs, bias=False, device="meta")
    else:
        kind = nn.Conv2d if full else SparseConv2d
        new = kind(inputs, outputs, **geometry(plain), bias=False, device="meta")
    new.weight = nn.Parameter(weight, requires_grad=plain.weight.requires_grad)
    bias = layer.bias[rows]
    if plain.bias is not None or bias.any():
        learns = (plain.weight if plain.bias is None else plain.bias).requires_grad
        new.bias = nn.Parameter(bias.to(weight), requires_grad=learns)
    return new


def _keep_channels(
    norm: nn.modules.batchnorm._BatchNorm, kept: Int[Tensor, " kept"], nodes: int
) -> None:
    """Cuts a batch normalisation down to the channels of the kept nodes, in this order."""
    each = norm.num_features // nodes
    channels = (kept[:, None] * each + torch.arange(each)).flatten()
    for name, parameter in list(norm.named_parameters()):
        value = parameter.detach()[channels].clone()
        setattr(norm, name, nn.Parameter(value, requires_grad=parameter.requires_grad))
    assert norm.running_mean is not None and norm.running_var is not None
    norm.running_mean = norm.running_mean[channels].clone()
    norm.running_var = norm.running_var[channels].clone()
    norm.num_features = len(channels)


def _measured(modules: Sequence[nn.Module], example: Tensor) -> list[float]:
    """Seconds of the fastest run of each module."""
    runs = [partial(module.eval(), example) for module in modules]
    with torch.inference_mode():
        return [min(times) for times in in_turns(runs, rounds=(5, 300), seconds=0.5)]
