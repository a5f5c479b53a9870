"""`ringkv serve --role prefill` in this process."""

from pathlib import Path

import pytest

from ringkv.base.config import EngineConfig
from ringkv.base.engine import Engine
from ringkv.base.errors import EngineDied
from ringkv.base.progress import Progress, silent
from ringkv.base.ranks import RankEnded
from ringkv.handoff.prefill_worker import run
from ringkv.wire.handshake import KEY
from tests.engine import tiny
from tests.handoff.workers import ANY


def build_without_a_rank(config: EngineConfig, progress: Progress) -> Engine:
    raise RankEnded("rank 1 of 2 was killed (SIGKILL)")


def test_a_rank_that_has_ended_is_named_in_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(KEY, "a secret of 24 characters")
    tiny.save(tmp_path, "Llama")
    with pytest.raises(EngineDied, match=r"rank 1 of 2 .*SIGKILL"):
        run(tiny.config(tmp_path), ANY, silent, print, f"{__name__}:{build_without_a_rank.__name__}")
