"""Several open answers of one LLM: each equals the answer that its request gets alone, piece by piece."""

import gc
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from ringkv import LLM, SamplingParams
from ringkv.base.errors import RequestFailed
from ringkv.llm.open_answers import OpenAnswer
from ringkv.llm.result import Stream, StreamPiece
from tests import chat_model

pytestmark = pytest.mark.timeout(60)  # a lost event would block forever

PROMPTS = ("The ring holds what is new. " * 8, "short", "Water boils at", "a b c", "fifth, with three slots")
TEN = SamplingParams(max_tokens=10, ignore_eos=True)
WARM = SamplingParams(max_tokens=7, temperature=0.9, seed=3, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = chat_model.save(tmp_path_factory.mktemp("model"))
    return LLM(folder, kv_budget=64, kv_window=8, prompt_tokens=448, slots=3, dtype="float32", graphs="off", threads=1)


def pieces(llm: LLM, prompt: str, sampling: SamplingParams = TEN) -> list[StreamPiece]:
    """The answer that the request gets alone."""
    return list(llm.stream(prompt, sampling))


@pytest.mark.parametrize("inner_tokens", [4, 20])
def test_an_answer_inside_a_stream_changes_neither(llm: LLM, inner_tokens: int) -> None:
    inner = SamplingParams(max_tokens=inner_tokens, ignore_eos=True)
    alone, alone_inner = pieces(llm, PROMPTS[0]), llm.generate(PROMPTS[1], inner)
    together = []
    for number, piece in enumerate(llm.stream(PROMPTS[0], TEN)):
        together.append(piece)
        if number == 1:
            assert llm.generate(PROMPTS[1], inner) == alone_inner
    assert together == alone


def test_streams_that_are_read_in_turns_equal_each_stream_alone(llm: LLM) -> None:
    alone = [pieces(llm, PROMPTS[0]), pieces(llm, PROMPTS[1], TEN)]
    both = zip(llm.stream(PROMPTS[0], TEN), llm.stream(PROMPTS[1], TEN), strict=True)
    assert [list(one) for one in zip(*both, strict=True)] == alone


@pytest.mark.parametrize("seed", range(5))
def test_streams_that_are_read_in_any_order_equal_each_stream_alone(llm: LLM, seed: int) -> None:
    """There are more streams than slots, and some end at a stop string."""
    dice = Random(seed)
    stop = llm.generate(PROMPTS[2], TEN).text[2:4]
    samplings = [TEN, WARM, SamplingParams(max_tokens=10, ignore_eos=True, stop=(stop,))]
    requests = [(prompt, dice.choice(samplings)) for prompt in PROMPTS]
    alone = [pieces(llm, *one) for one in requests]
    streams = dict(enumerate(llm.stream(*one) for one in requests))
    together: list[list[StreamPiece]] = [[] for _ in requests]
    while streams:
        number = dice.choice(list(streams))
        if (piece := next(streams[number], None)) is None:
            del streams[number]
        else:
            together[number].append(piece)
    assert together == alone
    assert llm._loop.idle


def test_a_stream_that_is_abandoned_is_cancelled_and_others_go_on(llm: LLM) -> None:
    alone = pieces(llm, PROMPTS[0])
    endless = SamplingParams(max_tokens=250, ignore_eos=True)
    stream = llm.stream(PROMPTS[0], TEN)
    first = next(stream)
    for _ in range(5):  # more than there are slots
        abandoned = llm.stream(PROMPTS[1], endless)
        next(abandoned)
        del abandoned
    assert llm._loop.stats().running == 1
    assert [first, *stream] == alone
    assert llm._loop.idle


def test_a_stream_that_was_never_read_holds_nothing(llm: LLM) -> None:
    llm.stream(PROMPTS[0], TEN)
    assert llm._loop.idle


def test_a_stream_that_is_collected_as_garbage_during_a_step_is_cancelled_after_it(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage collection closes a generator in a cycle at any time, here during a forward pass."""
    alone, running = pieces(llm, PROMPTS[1]), []
    engine, forward = llm._engine, llm._engine.forward

    def collect_then_feed(*drafts: object) -> Mapping[int, int]:
        gc.collect()
        running.append(llm._loop.stats().running)
        return forward()

    stream, abandoned = llm.stream(PROMPTS[1], TEN), [llm.stream(PROMPTS[0], TEN)]
    first, _ = next(stream), next(abandoned[0])
    abandoned.append(abandoned)  # type: ignore[arg-type]
    del abandoned
    monkeypatch.setattr(engine, "forward", collect_then_feed)
    assert [first, *stream] == alone
    assert (running[0], running[1]) == (2, 1)
    assert llm._loop.idle


def test_a_failure_is_raised_to_its_own_reader(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = pieces(llm, PROMPTS[1])
    engine, insert = llm._engine, llm._engine.insert

    def refuse_the_long(prefix, slot, request):  # type: ignore[no-untyped-def]
        if len(request.tokens) > 100:
            raise ValueError("it is broken")
        insert(prefix, slot, request)

    monkeypatch.setattr(engine, "insert", refuse_the_long)
    failing, fine = llm.stream(PROMPTS[0], TEN), llm.stream(PROMPTS[1], TEN)
    together = [next(fine)]
    with pytest.raises(RequestFailed, match="it is broken"):
        next(failing)
    assert together + list(fine) == alone
    assert llm._loop.idle


def test_streams_that_threads_read_equal_each_stream_alone(llm: LLM) -> None:
    requests = [(prompt, sampling) for prompt in PROMPTS for sampling in (TEN, WARM)]
    alone = [pieces(llm, *each) for each in requests]
    with ThreadPoolExecutor(len(requests)) as pool:
        for _ in range(5):
            assert list(pool.map(lambda each: pieces(llm, *each), requests)) == alone
    assert llm._loop.idle


def test_a_step_that_is_interrupted_fails_the_streams_that_are_open(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = pieces(llm, PROMPTS[0])
    stream = llm.stream(PROMPTS[0], TEN)
    assert next(stream) == alone[0]

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(llm._engine, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS[1], TEN)
    with pytest.raises(RequestFailed, match="interrupted"):
        list(stream)
    assert pieces(llm, PROMPTS[0]) == alone
    assert llm._loop.idle


def test_the_answers_that_are_looked_at_grow_with_the_events_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[OpenAnswer] = []

    def read(answer: OpenAnswer) -> Stream:
        reads.append(answer)
        return original(answer)

    original = OpenAnswer.read
    monkeypatch.setattr(OpenAnswer, "read", read)
    counts = []
    for prompts in (10, 40):
        reads.clear()
        llm.generate(["a b"] * prompts, SamplingParams(max_tokens=3, ignore_eos=True), progress=False)
        counts.append(len(reads))
    assert counts[1] <= 4 * counts[0] + 4
