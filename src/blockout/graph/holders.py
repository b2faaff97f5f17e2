"""Layers that a model holds outside its modules, where replacing them would go unnoticed."""

import functools
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

from torch import nn

DEEPEST = 4
"""How many containers inside one another are searched."""


def held_outside(model: nn.Module) -> dict[nn.Module, str]:
    """Modules that lists, dictionaries, functions or plain attributes hold, and where.

    Such a reference stays as it is when the module itself is replaced, in ``model._modules``.

    >>> net = nn.Module()
    >>> net.fc = nn.Linear(2, 2)
    >>> net.stages = [net.fc]
    >>> held_outside(net)[net.fc]
    'stages of Module'
    """
    found: dict[nn.Module, str] = {}
    own = set(nn.Module().__dict__)
    for name, module in model.named_modules():
        for attribute, value in module.__dict__.items():
            if attribute not in own:
                where = f"{attribute} of {name or type(module).__name__}"
                found |= dict.fromkeys(_modules_in(value, DEEPEST), where)
    return found


def _modules_in(value: Any, depth: int) -> Iterator[nn.Module]:
    if isinstance(value, nn.Module):
        yield value
    elif depth:
        for part in _parts(value):
            yield from _modules_in(part, depth - 1)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, MethodType):
        yield value.__self__
    elif isinstance(value, FunctionType):
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not filled yet
                continue
