import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import SMALL, Cli
from tests.engine.tiny import SIZES


@pytest.fixture(scope="module")
def entry() -> int:
    return 2 * SIZES["num_hidden_layers"] * SIZES["num_key_value_heads"] * SIZES["head_dim"] * 4


@pytest.fixture
def long_dir(model_dir: Path, tmp_path: Path) -> Path:
    """The same model for longer texts: a token is a byte, and the manual's paragraphs have hundreds."""
    folder = shutil.copytree(model_dir, tmp_path / "long")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return folder


def test_the_demo_shows_what_is_kept_and_what_a_full_cache_would_hold(cli: Cli, long_dir: Path, entry: int) -> None:
    said = cli("demo", "--model", long_dir, *SMALL, "--tokens", "2000")
    assert said.status == 0
    assert "tokens of Python's own manual" in said.out
    assert said.out.count("| kept 64, evicted") == 2 * 2  # before and after each answer
    assert f"This one held 64, {64 * entry / 1000:.1f} kB" in said.out
    assert "loading weights" in said.err
