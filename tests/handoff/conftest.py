"""Fixtures of other folders: one loads the C++ kernels, the other saves a tiny model."""

from tests.engine.conftest import llama_dir
from tests.kernels.conftest import compiled

__all__ = ["compiled", "llama_dir"]
