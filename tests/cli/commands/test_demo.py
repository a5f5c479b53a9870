import json
import shutil
from pathlib import Path

import pytest

from ringkv.cli.commands.demo import Needle
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
    monkeypatch.setattr(Needle, "is_in", lambda needle, answer: needle.name == "number")
    result = cli("demo", "--model", long_dir, *SMALL, "--tokens", "2000")
    assert result.status == 0
    assert "tokens of Python's manual, with one of 3 facts" in result.out
    rows = [line.split() for line in result.out.splitlines() if line.startswith("  ")]
    assert [(row[0], row[3]) for row in rows] == [
        (policy, verdict) for verdict in ("missed", "found", "missed") for policy in ("full", "streaming", "snapstream")
    ]
    assert [int(row[1]) for row in rows[1:3]] == [64, 64]
    full = int(rows[-3][1].replace(",", ""))
    assert full > 1900
    assert "found: full 1 of 3, streaming 1 of 3, snapstream 1 of 3" in result.out
    assert f"The full cache used {full:,} entries, {full * entry / 1e6:.3g} MB" in result.out
    assert f"The others used 64, {64 * entry / 1000:.1f} kB ({full / 64:.1f} times less)" in result.out
    assert "loading weights" in result.err


def test_a_document_is_prefilled_once_for_the_three_caches(cli: Cli, long_dir: Path) -> None:
    result = cli("demo", "--model", long_dir, *SMALL, "--tokens", "2000")
    first, *others = [
        int(step.split()[3].replace(",", "")) for step in result.err.splitlines() if "prefilling the" in step
    ]
    assert first <= 512
    assert min(others) > 1000
