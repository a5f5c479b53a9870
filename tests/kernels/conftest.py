"""The C++ kernels, for the tests that compare them."""

import pytest

from ringkv.kernels import native
from ringkv.machine.compiler import find_compiler
from ringkv.machine.paths import cache_dir


@pytest.fixture(scope="session")
def compiled() -> None:
    """They are built and loaded from here on; the test is skipped where there is no compiler."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler on this machine")
    native.load(compiler.path, cache_dir() / "kernels")
