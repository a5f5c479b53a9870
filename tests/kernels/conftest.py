"""The fixture that loads the C++ kernels."""

import pytest

from ringkv.kernels import native
from ringkv.machine.compiler import find_compiler
from ringkv.machine.paths import cache_dir


@pytest.fixture(scope="session")
def compiled() -> None:
    """Build and load the kernels for the rest of the session; skip the test if there is no compiler."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler on this machine")
    native.load(compiler.path, cache_dir() / "kernels")
