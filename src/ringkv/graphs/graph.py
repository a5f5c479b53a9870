"""A graph: a static function of tensors, made ready once and replayed.

Weights and caches are arguments, never constants: one layer's graph serves every layer, and all graphs share one copy
of the weights.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

Function = Callable[..., tuple[Tensor, ...]]
"""Positional tensors in, a tuple of tensors out; may change arguments in place. No branch on a tensor's value.

An attribute `key` may name what the function captured, where its name and its arguments' shapes do not tell two apart.
An attribute `lengths` may say, by an argument's place, which of its dimensions have a length that the function does not
depend on: a backend may make one graph for all of them.
"""

Graph = Callable[[list[Tensor]], Sequence[Tensor]]
"""The same, ready to run; arguments as one list, of the shapes and types it was made for."""


class Backend(Protocol):
    """Makes graphs. `builds` counts the compilations it really did; a replay never adds one."""

    builds: int

    def make(self, name: str, function: Function, example: Sequence[Tensor]) -> Graph: ...


class Eager:
    """Calls the function as it is: no compiler needed, the reference for the others."""

    builds = 0

    def make(self, name: str, function: Function, example: Sequence[Tensor]) -> Graph:
        return lambda arguments: function(*arguments)
