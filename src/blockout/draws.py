"""Which draw belongs to which nodes, so that all layers of a forward pass agree on it.

A draw travels with its nodes. The layer that makes the nodes leaves its draw in torch's autograd
graph, and a layer that reads them walks back from its input until it finds it. So neither the order
of calls matters, nor what other threads or passes in eval mode do:

    h1, h2 = a(x1), a(x2)
    b(h1.relu()), b(h2.relu())  # each with the draw of its own nodes

Without a graph (``no_grad``, ``detach``, reentrant checkpointing, compiled code) the order of calls
decides: a reader uses the last draw of its thread, and refuses if that may be the wrong one.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.weak import WeakTensorKeyDictionary

REMEMBERED = 64
"""How many uses, one per layer and forward pass, keep their draw for a later backward pass."""

Sample = Callable[[], Tensor]
Use = tuple[Tensor, bool]
"""The bits that a layer uses, and whether they were drawn for this use."""


class Draw:
    """C of one set of nodes in one forward pass, and who used it."""

    def __init__(self, bits: Tensor | None, *, made: bool, doubtful: bool = False) -> None:
        self.bits = bits  # None if nobody has drawn yet
        self.made = made  # nodes were made with it; otherwise the first to read them drew it
        self.doubtful = doubtful  # nobody had read the draw before it
        self.outdated = False  # nodes have been made in eval mode since
        self.held = False
        self.compiled = torch.compiler.is_compiling()
        self.used_by: frozenset[int] = frozenset()
        self.times_made = 1
        self.times_read: dict[int, int] = {}


class Draws:
    """The draws of one set of nodes. Each layer has one seat per side on which it uses the set."""

    def __init__(self) -> None:
        self.seats = 0
        self.producers: frozenset[int] = frozenset()
        self._start()

    def _start(self) -> None:
        self._uses: OrderedDict[int, Use] = OrderedDict()
        self.forget()

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles keep the seats but take no draw with them."""
        return {"seats": self.seats, "producers": self.producers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def join(self, *, producer: bool) -> int:
        """Returns a seat."""
        seat = self.seats
        self.seats += 1
        if producer:
            self.producers = self.producers | {seat}
        return seat

    def forget(self) -> None:
        """Drops every draw: the next layer to run draws a new one, whatever its input is."""
        self.latest = Draw(None, made=False)
        self.unread = False  # nobody has read the nodes made with the last draw
        self.several_threads = False
        self._by_thread: dict[int, Draw] = {}
        self._without_graph = WeakTensorKeyDictionary()
        self._key = object()  # what still hangs in a graph is not found any more

    @contextmanager
    def held(self) -> Iterator[None]:
        """One draw for every use by this thread."""
        before = self._own()
        draw = self._begin(Draw(None, made=bool(self.producers)))
        draw.held = True
        try:
            yield
        finally:
            draw.held = False
            self._by_thread[threading.get_ident()] = before  # it may still wait for its readers

    # --- one use --------------------------------------------------------------------------------

    def make(self, seat: int, sample: Sample) -> Use:
        """The draw that a layer makes nodes with.

        Layers that make the same nodes share a draw. A second call of one of them starts a new
        forward pass.
        """
        draw, compiling = self._own(), torch.compiler.is_compiling()
        single = len(self.producers) == 1  # spares compiled code a look at the last draw
        if not draw.held and (single or not draw.made or seat in draw.used_by):
            unread = self.unread if compiling else draw.made and draw.used_by <= self.producers
            draw = self._begin(Draw(sample(), made=True, doubtful=unread))
            self.unread = self.seats > len(self.producers)
            return self._used(draw, seat, drew=True)
        draw.times_made, draw.outdated = draw.times_made + 1, False
        return self._used(draw, seat, drew=self._fill(draw, sample))

    def read(self, seat: int, nodes: Tensor | None, sample: Sample) -> Use:
        """The draw that a layer reads nodes with: the one that made them.

        If no layer drew for them, their first reader does, and again with each further call.
        """
        found, held = self._found(nodes), self._own().held
        draw = found if found is not None and (found.made or not held) else self._in_order(seat)
        again = not (held or draw.made) and (self.seats < 2 or seat in draw.used_by)
        if again and draw is not found:
            draw = Draw(None, made=False)
        elif again:
            draw.bits, draw.used_by = None, frozenset()
        if draw.bits is None and (again or draw is not found):
            self._begin(draw)
        drew = self._fill(draw, sample)
        self.unread = False
        if not torch.compiler.is_compiling():
            if draw is not found:
                self._attach(nodes, draw)
            draw.times_read[seat] = draw.times_read.get(seat, 0) + 1
        return self._used(draw, seat, drew=drew)

    def made(self, nodes: Tensor, bits: Tensor | None) -> None:
        """Leaves the draw at the nodes that a layer has made with it; None in eval mode."""
        draw = self._own() if bits is not None else Draw(None, made=False)
        if draw.bits is bits:
            # Changing a view in place would cut it off from where it was made, but not its base.
            self._attach(nodes if nodes._base is None else nodes._base, draw)

    def made_in_eval_mode(self) -> None:
        """Says that a layer has made nodes with P."""
        self._own().outdated = True

    # --- activation checkpointing ---------------------------------------------------------------

    def remember(self, mark: int, use: Use) -> None:
        """Keeps a use for a forward pass that is recomputed with the same mark."""
        self._uses[mark] = use
        if len(self._uses) > REMEMBERED:
            self._uses.popitem(last=False)

    def recall(self, mark: int) -> Use:
        """The use that is being recomputed."""
        if mark not in self._uses:
            raise RuntimeError(
                "cannot find the draw of a forward pass that is being recomputed for a backward "
                "pass; checkpoint with preserve_rng_state=True, and run the backward pass after at "
                f"most {REMEMBERED} uses of these memberships"
            )
        return self._uses[mark]

    # --- whose draw -----------------------------------------------------------------------------

    def _own(self) -> Draw:
        """The last draw of this thread. Compiled code cannot tell threads apart."""
        latest = self.latest
        if torch.compiler.is_compiling() or latest.compiled:
            return latest
        return self._by_thread.get(threading.get_ident()) or Draw(None, made=False)

    def _begin(self, draw: Draw) -> Draw:
        self.latest = draw
        if not torch.compiler.is_compiling():
            self._by_thread[threading.get_ident()] = draw
            self.several_threads = len(self._by_thread) > 1
        return draw

    def _fill(self, draw: Draw, sample: Sample) -> bool:
        """Draws if nobody has drawn yet, and returns whether."""
        if draw.bits is not None:
            return False
        draw.bits = sample()
        self.latest = draw
        return True

    def _used(self, draw: Draw, seat: int, *, drew: bool) -> Use:
        assert draw.bits is not None
        draw.used_by = draw.used_by | {seat}
        return draw.bits, drew

    def _in_order(self, seat: int) -> Draw:
        """The draw of nodes that no graph leads back from: the last of this thread."""
        draw, compiling = self._own(), torch.compiler.is_compiling()
        if compiling:
            elsewhere = self.several_threads and not draw.compiled
        else:
            elsewhere = draw.bits is None and not draw.held and self.latest.bits is not None
        if self.producers and elsewhere:
            raise _cannot_tell("the last draw may belong to another thread")
        if not draw.made or draw.held:
            return draw
        if draw.doubtful:
            raise _cannot_tell("its nodes were made twice before they were read")
        if draw.outdated and seat not in draw.used_by:
            raise _cannot_tell("its nodes were made in training and then in eval mode")
        if draw.outdated:
            return Draw(None, made=False)
        if not compiling and draw.times_read.get(seat, 0) >= draw.times_made:
            raise _cannot_tell("this layer has used the last draw already")
        return draw

    def _found(self, nodes: Tensor | None) -> Draw | None:
        """The draw that hangs at nodes, or behind them in the autograd graph."""
        if nodes is None or self.seats < 2 or torch.compiler.is_compiling():
            return None
        if nodes.grad_fn is None:
            return self._at(nodes)
        found: set[Draw] = set()
        edges: list[tuple[Node | None, int]] = [(nodes.grad_fn, nodes.output_nr)]
        seen = set()
        while edges:
            edge = edges.pop()
            node, output = edge
            if node is None or edge in seen:
                continue
            seen.add(edge)
            draw = _notes(node).get((self._key, output))
            if draw is not None:
                found.add(draw)
            elif self.producers:  # otherwise draws hang at the very tensors that are read
                edges += node.next_functions
        if len(found) > 1:
            raise _cannot_tell(f"its nodes were made with {len(found)} different draws")
        return found.pop() if found else self._at(nodes)

    def _at(self, nodes: Tensor) -> Draw | None:
        """The draw of a tensor without a graph, unless its values have changed since."""
        found = self._without_graph.get(nodes)
        return found[0] if found is not None and found[1] == nodes._version else None

    def _attach(self, nodes: Tensor | None, draw: Draw) -> None:
        if nodes is None or self.seats < 2:
            return
        if nodes.grad_fn is not None:
            _notes(nodes.grad_fn)[self._key, nodes.output_nr] = draw
        elif not nodes.is_inference():
            self._without_graph[nodes] = draw, nodes._version


def _notes(node: Node) -> dict[Any, Any]:
    """What torch lets us write on a node of the autograd graph; it goes with the node."""
    return node.metadata  # pyright: ignore  # a dictionary, not a method


def _cannot_tell(why: str) -> RuntimeError:
    return RuntimeError(
        f"cannot tell which draw belongs to the input of a layer: {why}, and no autograd graph "
        "shows which one is meant. Call each layer right after the one that makes its inputs, or "
        "run the forward pass in `with blockout.one_draw(model):`. If the input is not made by a "
        "Blockout layer, or an earlier pass was given up, call layer.inputs.forget() first"
    )
