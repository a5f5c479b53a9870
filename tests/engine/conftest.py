from pathlib import Path

import pytest

from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from tests.engine import tiny
from tests.kernels.conftest import compiled

__all__ = ["compiled"]


@pytest.fixture(scope="session")
def llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.save(folder, "Llama")
    return folder


@pytest.fixture
def engine(llama_dir: Path) -> LocalEngine:
    """Three slots of 64 entries, float32, eager."""
    return build(tiny.config(llama_dir))
