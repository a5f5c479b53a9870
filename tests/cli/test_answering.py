from collections.abc import Iterator
from dataclasses import replace

import pytest

from ringkv.base.engine import Limits
from ringkv.base.events import FinishReason, HeadUsage, KVUsage, PageUsage, Usage
from ringkv.cli import answering
from ringkv.cli.answering import TimedResult, cache_line, cut_short, follow, live
from ringkv.llm.result import Result, StreamPiece


def usage(prompt: int, sampled: int, evicted: int, capacity: int = 64) -> Usage:
    return Usage(
        prompt, sampled, KVUsage("snapstream", capacity, kept=60, evicted=evicted, ring_wraps=1, bytes_held=10**6)
    )


def result(sampled: int) -> Result:
    return Result("abc", tuple(range(sampled)), "length", usage(100, sampled, 38))


def test_the_clock_runs_from_the_request_to_the_first_token_and_from_there_to_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([10.0, 12.0, 12.5, 13.0])
    monkeypatch.setattr(answering.time, "perf_counter", lambda: next(clock))

    def pieces() -> Iterator[StreamPiece]:
        yield from (StreamPiece("a", 1), StreamPiece("b", 2), StreamPiece("c", 3))
        yield StreamPiece("", result=result(3))

    texts: list[str] = []
    timed = follow(pieces(), lambda piece: texts.append(piece.text))
    assert texts == ["a", "b", "c", ""]
    assert (timed.first_token_s, timed.decode_s) == (2.0, 1.0)
    assert timed.prefill_rate == 100 / 2.0
    assert timed.decode_rate == 2 / 1.0


def test_one_token_has_no_decode_rate() -> None:
    timed = TimedResult(result(1), 2.0, 0.0)
    assert timed.decode_rate is None
    assert "decode" not in timed.line()


def test_a_truncated_answer_names_the_context_or_the_full_cache_as_the_reason() -> None:
    def cut(reason: FinishReason, sampled: int, prompt: int = 100) -> str | None:
        found = Result("", (), reason, usage(prompt, sampled, 0))
        return cut_short(found, 50, Limits(1, 64, 128, 16, 1, 128, 199, 4, 256, 4))

    assert cut("stop", 20) is None
    assert cut("length", 50) is None
    assert "28 of 50 tokens: the model's context of 128 " in (cut("length", 28) or "")
    assert "snapstream evicts nothing and its 64 entries" in (cut("length", 5, 60) or "")


def test_the_line_has_the_caches_counters() -> None:
    assert cache_line(usage(7012, 3, 6950)) == (
        "7,012 prompt tokens | kept 60, evicted 6,950, 1 ring wrap | 1 MB KV cache"
    )


def test_policies_that_watch_decoding_have_reviews_instead_of_ring_wraps() -> None:
    watched = usage(7012, 3, 6950)
    watched = replace(watched, kv=replace(watched.kv, policy="scissorhands", ring_wraps=2))
    assert "evicted 6,950, 2 reviews | 1 MB" in cache_line(watched)


def test_the_line_has_what_steps_read_and_heads_hold_if_that_is_less_than_all() -> None:
    one = usage(7012, 3, 6950)
    paged, divided = (
        replace(one, kv=replace(one.kv, **more))
        for more in (
            {"pages": PageUsage(held=20, resident=20, step=6, read=12, skipped=28)},
            {"heads": HeadUsage(31, 1204)},
        )
    )
    assert ", 1 ring wrap, steps read 6 of 20 pages | 1 MB" in cache_line(paged)
    assert ", 1 ring wrap, heads hold 31 to 1,204 | 1 MB" in cache_line(divided)


def test_json_leaves_out_counters_that_a_policy_does_not_have() -> None:
    plain, divided = result(3), result(3)
    divided = replace(divided, usage=replace(divided.usage, kv=replace(divided.usage.kv, heads=HeadUsage(3, 9))))
    found = [TimedResult(one, 1.0, 1.0).as_json()["usage"]["kv"] for one in (plain, divided)]
    assert set(found[1]) - set(found[0]) == {"heads"}
    assert found[1]["heads"] == {"fewest": 3, "most": 9}


@pytest.mark.parametrize(
    ("prompt", "sampled", "evicted", "entries"), [(10, 1, 0, 10), (10, 5, 0, 14), (100, 5, 40, 64)]
)
def test_live_entries_are_the_tokens_fed_that_were_not_evicted(
    prompt: int, sampled: int, evicted: int, entries: int
) -> None:
    assert live(usage(prompt, sampled, evicted)) == entries
