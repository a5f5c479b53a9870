"""The C++ kernels, for the tests that compare them."""

import pytest

from ringkv.base.compiler import find_compiler
from ringkv.base.paths import cache_dir
from ringkv.kernels import native


@pytest.fixture(scope="session")
def compiled() -> None:
    """They are built and loaded from here on; the test is skipped where there is no compiler."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler on this machine")
    native.load(compiler.path, cache_dir() / "kernels")
