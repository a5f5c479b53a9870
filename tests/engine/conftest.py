from pathlib import Path

import pytest

from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.graphs.aot import AheadOfTime
from tests.engine import tiny
from tests.kernels.conftest import compiled

__all__ = ["compiled"]


@pytest.fixture(scope="session")
def llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.save(folder, "Llama")
    return folder


@pytest.fixture(autouse=True)
def _shared_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of tests use the same precompiled headers, which take fifteen seconds to make."""
    monkeypatch.setattr(AheadOfTime, "discard_headers", lambda _: None)


@pytest.fixture
def engine(llama_dir: Path) -> LocalEngine:
    """Three slots of 64 entries, float32, eager."""
    return build(tiny.config(llama_dir))
