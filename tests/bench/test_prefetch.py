"""The benchmark of prefetching: what one request counts, and the shares that are made of it."""

from pathlib import Path

import pytest

from bench.prefetch import answered, cells, figure
from ringkv.base.events import FetchedPages
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SnapKV
from ringkv.engine.build import build
from tests.engine import tiny


def test_the_pages_of_an_answer_are_fetched_from_its_files(tmp_path: Path) -> None:
    tiny.save(tmp_path, "Llama")
    kv = KVChoice("arkvale", budget=96, sinks=4, recent=16, select=SnapKV(window=8))
    engine = build(tiny.config(tmp_path, kv=kv, capacity=320, kv_page=16, kv_tier=tmp_path, kv_prefetch=True))
    try:
        found = answered(engine, tuple(tiny.prompt(200)), 4)
    except OSError as kept:
        pytest.skip(str(kept))  # a file in memory, without swap
    assert found.recalled > 0  # of the first layer, which nothing predicts
    assert found.prefetched >= found.prefetch_hits > 0
    assert engine.fetched(0) is not None


def test_shares_are_of_what_was_prefetched_and_of_what_was_missing() -> None:
    one = figure("task", FetchedPages(recalled=5, prefetched=40, prefetch_hits=20))
    assert (one["hits"], one["found"]) == (0.5, 0.8)
    assert cells(one) == ("task", "40", "5", "50%", "80%")
    assert cells(figure("task", FetchedPages(0, 0, 0)))[1:] == ("0", "0", "0%", "0%")
