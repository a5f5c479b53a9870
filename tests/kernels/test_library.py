"""Which operators are native, as the key of compiled graphs says; and the groups of arguments that functions get."""

import subprocess
import sys
from typing import NamedTuple

from ringkv.kernels.library import grouped

CODE = """
import pkgutil
from importlib import import_module
import ringkv.kernels
from ringkv.kernels.library import native_operators
for module in pkgutil.iter_modules(ringkv.kernels.__path__):
    if not module.ispkg:
        import_module(f"ringkv.kernels.{module.name}")
print(native_operators())
"""


def test_operators_in_python_are_not_native() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


class Inner(NamedTuple):
    second: int
    third: tuple[int, ...]


class Outer(NamedTuple):
    first: str
    inner: Inner
    fourth: float | None


def test_flat_arguments_reach_a_function_in_its_groups() -> None:
    def function(before: int, outer: Outer, after: Inner) -> tuple[int, Outer, Inner]:
        return before, outer, after

    found = grouped(function)(0, "a", 2, (3,), None, 5, (6, 7))
    assert found == (0, Outer("a", Inner(2, (3,)), None), Inner(5, (6, 7)))
