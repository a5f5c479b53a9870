"""kernels: loads the C++ operators for benchmarks that build no engine."""

from ringkv.kernels import native
from ringkv.machine.compiler import find_compiler
from ringkv.machine.paths import cache_dir


def load_kernels() -> None:
    """Compile the operators, or take them from the cache, and load them."""
    compiler = find_compiler()
    assert compiler is not None, "a C++ compiler is needed"
    native.load(compiler.path, cache_dir() / "kernels")
