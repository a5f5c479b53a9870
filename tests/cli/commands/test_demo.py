from pathlib import Path

import pytest

from ringkv.cli.commands.demo import Needle
from tests import chat_model
from tests.cli.conftest import Cli

SMALL = ("--graphs", "off", "--dtype", "float32", "--threads", "1")


@pytest.fixture
def long_dir(tmp_path: Path) -> Path:
    """A model for longer texts: a token is a byte, and the manual's paragraphs have hundreds."""
    return chat_model.save(tmp_path, max_position_embeddings=4096)


def test_the_demo_asks_for_each_fact_under_each_cache_and_counts_what_was_found(
    cli: Cli, long_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Needle, "is_in", lambda needle, answer: needle.name == "number")
    result = cli("demo", "--model", long_dir, *SMALL, "--tokens", "2000")
    assert result.status == 0
    assert "Python's manual, with one of 3 facts hidden in it" in result.out
    caches = ("full", "streaming 4x", "snapstream 4x")
    rows = [line for line in result.out.splitlines() if line.startswith(caches)]
    assert [line.partition("  ")[0] for line in rows] == 3 * ["full", "streaming 4x", "snapstream 4x"]
    full, *quarters = (int(line.split()[1 + (index > 0)].replace(",", "")) for index, line in enumerate(rows[-3:]))
    assert full > 1900
    assert quarters == [full // 4, full // 4]
    assert result.out.endswith("found: full 1 of 3, streaming 4x 1 of 3, snapstream 4x 1 of 3\n")
    assert "loading weights" in result.err
