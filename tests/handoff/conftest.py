"""The fixture that loads the C++ kernels."""

from tests.kernels.conftest import compiled

__all__ = ["compiled"]
