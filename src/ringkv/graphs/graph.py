"""graph: a static function of tensors, prepared once and replayed.

Weights and caches are arguments, never constants: one layer's graph serves every layer, and all graphs share one copy
of the weights.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

TensorFunction = Callable[..., tuple[Tensor, ...]]
"""Positional tensors in, a tuple of tensors out; may change arguments in place. No branch on a tensor's value."""


@dataclass(frozen=True)
class StaticFunction:
    """The function that a graph is made from.

    key: distinguishes functions whose arguments have the same shapes: its name, and all that its body captured.
    dynamic: by an argument's place, the dimensions whose length the body does not depend on. A backend may make one
    graph for all lengths. rows: the arguments whose first dimension is the rows of a pass.
    """

    body: TensorFunction
    key: str
    dynamic: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    rows: tuple[int, ...] = ()

    def for_any_rows(self) -> "StaticFunction":
        """Return this function with rows among its dynamic dimensions."""
        return replace(self, dynamic={**self.dynamic, **dict.fromkeys(self.rows, (0,))})

    def dynamic_dimensions(self, example: Sequence[Tensor]) -> list[tuple[int, ...]]:
        """Return the dynamic dimensions of each argument."""
        return [self.dynamic.get(place, ()) for place in range(len(example))]


Graph = Callable[[list[Tensor]], Sequence[Tensor]]
"""A function that is ready to run. Its arguments are one list, of the shapes and dtypes that it was made for."""


class Backend(Protocol):
    """Makes graphs. `builds` counts compilations; loading or replaying a graph adds none."""

    builds: int

    def make(self, name: str, function: StaticFunction, example: Sequence[Tensor]) -> Graph: ...


class Eager:
    """Calls the function without compiling it; the reference for the other backends."""

    builds = 0

    def make(self, name: str, function: StaticFunction, example: Sequence[Tensor]) -> Graph:
        return lambda arguments: function.body(*arguments)
