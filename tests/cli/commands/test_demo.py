import json
import shutil
from pathlib import Path

import pytest

from ringkv.cli.needles import Needle
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


def test_the_demo_asks_for_each_fact_under_each_cache_and_counts_what_was_found(
    cli: Cli, long_dir: Path, entry: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Needle, "is_in", lambda needle, answer: needle.kind == "number")
    said = cli("demo", "--model", long_dir, *SMALL, "--tokens", "2000")
    assert said.status == 0
    assert "tokens of Python's own manual, with one of 3 facts" in said.out
    rows = [line.split() for line in said.out.splitlines() if line.startswith("  ")]
    assert [(row[0], row[3]) for row in rows] == [
        (policy, verdict) for verdict in ("missed", "found", "missed") for policy in ("full", "streaming", "snapstream")
    ]
    assert [int(row[1]) for row in rows[1:3]] == [64, 64]
    full = int(rows[-3][1].replace(",", ""))
    assert full > 1900
    assert "found: full 1 of 3, streaming 1 of 3, snapstream 1 of 3" in said.out
    assert f"The full cache held {full:,} entries, {full * entry / 1e6:.3g} MB" in said.out
    assert f"The others held 64, {64 * entry / 1000:.1f} kB ({full / 64:.1f} times less)" in said.out
    assert "loading weights" in said.err


def test_a_document_is_read_once_for_the_three_caches(cli: Cli, long_dir: Path) -> None:
    said = cli("demo", "--model", long_dir, *SMALL, "--tokens", "2000")
    first, *others = [int(step.split()[3].replace(",", "")) for step in said.err.splitlines() if "reading the" in step]
    assert first <= 512
    assert min(others) > 1000
