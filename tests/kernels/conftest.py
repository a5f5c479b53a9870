"""The fixtures that load the C++ kernels, and start a process with Triton's interpreter."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from ringkv.kernels import native
from ringkv.machine.compiler import find_compiler
from ringkv.machine.folders import cache_dir
from tests.kernels.interpreted import interpreter


@pytest.fixture(scope="session")
def compiled() -> None:
    """Build and load the kernels for the rest of the session; skip the test if there is no compiler."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler on this machine")
    native.load(compiler.path, cache_dir() / "kernels")


@pytest.fixture(scope="session")
def pool() -> Iterator[ProcessPoolExecutor]:
    """A process that runs Triton's interpreter, for `tests.kernels.interpreted`."""
    try:
        with interpreter() as found:
            yield found
    except RuntimeError as error:
        if "0-dimensional arrays" not in str(error):
            raise
        pytest.skip("the interpreter of Triton before 3.7 does not run with NumPy from 2.4 on")


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use an empty cache: Triton compiles kernels from source, each specialisation once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield
