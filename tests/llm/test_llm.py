"""LLM on a tiny random model whose tokens are bytes, against the same calls of the engine."""

import time
from pathlib import Path

import pytest

from ringkv import LLM, KVChoice, SamplingParams
from ringkv.base.errors import BudgetTooSmall, InvalidRequest, PromptTooLong
from ringkv.base.selectors import SnapKV
from ringkv.engine.build import build
from tests import chat_model
from tests.engine import tiny
from tests.refusals import refusal

LONG = "The ring holds what is new. " * 12
TEN = SamplingParams(max_tokens=10, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = chat_model.save(tmp_path_factory.mktemp("model"))
    return LLM(folder, kv_budget=64, kv_window=8, prompt_tokens=448, slots=3, dtype="float32", graphs="off", threads=2)


def test_an_answer_equals_direct_calls_of_the_engine(llm: LLM) -> None:
    result = llm.generate(LONG, TEN)
    engine = build(llm.config)
    request = tiny.request(list(LONG.encode()), max_tokens=10)
    tiny.enter(engine, request)
    assert list(result.token_ids) == tiny.decode(engine, 10)[0]
    assert result.text == bytes(result.token_ids).decode(errors="replace")
    assert result.finish_reason == "length"


def test_the_usage_proves_what_the_cache_did(llm: LLM) -> None:
    usage = llm.generate(LONG, TEN).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(LONG), 10)
    # 64 entries; the last of the ten sampled tokens is not fed to the model
    assert (usage.kv.kept, usage.kv.evicted) == (64, len(LONG) + 9 - 64)
    assert usage.kv.bytes_held == 64 * llm.limits.entry_bytes


def test_prompts_together_get_the_answers_they_get_alone(llm: LLM) -> None:
    prompts = [LONG, "short", list(b"ids"), LONG[::-1], "fifth, with three slots"]
    sampling = SamplingParams(max_tokens=12, temperature=0.8, seed=5)
    together = llm.generate(prompts, sampling, progress=False)
    assert together == [llm.generate([prompt], sampling)[0] for prompt in prompts]


def test_progress_is_shown_on_stderr_or_passed_to_on_progress(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"kv_budget": 64, "kv_window": 8, "prompt_tokens": 448, "graphs": "off", "threads": 2}
    LLM(llm.config.model_dir, **settings)
    assert "loading weights" in capsys.readouterr().err
    reported: list[str] = []
    LLM(llm.config.model_dir, on_progress=lambda done, total, what: reported.append(what), **settings)
    assert "loading weights" in reported
    assert capsys.readouterr().err == ""


def test_pieces_add_up_to_the_result(llm: LLM) -> None:
    pieces = list(llm.stream(LONG, TEN))
    result = pieces[-1].result
    assert result is not None
    assert "".join(piece.text for piece in pieces) == result.text
    assert [piece.token for piece in pieces if piece.token is not None] == list(result.token_ids)


def test_a_stop_string_ends_the_text_before_it(llm: LLM) -> None:
    text = llm.generate(LONG, TEN).text
    stop = text[4:6]
    result = llm.generate(LONG, SamplingParams(max_tokens=10, ignore_eos=True, stop=(stop,)))
    assert result.text == text[: text.index(stop)]
    assert result.finish_reason == "stop"


def test_a_chat_goes_through_the_models_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    prompt = [256, *b"user:hi", 257, 256]
    assert llm.encode_chat(messages) == prompt
    assert llm.chat(messages, TEN) == llm.generate([prompt], TEN)[0]


def test_a_chats_system_message_stays_while_the_rest_is_evicted(llm: LLM) -> None:
    system, question = {"role": "system", "content": "Be brief"}, {"role": "user", "content": LONG}
    prompt = llm.encode_chat([system, question])
    kept = KVChoice(budget=64, select=SnapKV(window=8), protect=((0, 1 + len("system:Be brief")),))
    assert (
        llm.chat([system, question], TEN, kv=KVChoice(budget=64, select=SnapKV(window=8)))
        == llm.generate([prompt], TEN, kv=kept)[0]
    )


def test_each_request_may_choose_its_cache(llm: LLM) -> None:
    streaming = llm.generate(LONG, TEN, kv=KVChoice("streaming", budget=32)).usage.kv
    assert (streaming.policy, streaming.capacity, streaming.kept) == ("streaming", 32, 32)


def test_a_closed_stream_frees_its_slot(llm: LLM) -> None:
    for _ in range(5):  # more than there are slots
        stream = llm.stream(LONG, SamplingParams(max_tokens=50, ignore_eos=True))
        next(stream)
        stream.close()
    assert llm._loop.idle
    assert llm.generate("still here", TEN).usage.completion_tokens == 10


def test_prefill_reports_its_progress(llm: LLM) -> None:
    reported: list[tuple[int, int]] = []
    list(llm.stream(LONG, TEN, on_prefill=lambda *step: reported.append(step)))
    assert reported[-1] == (len(LONG), len(LONG))
    assert reported == sorted(reported)


@pytest.mark.parametrize(
    ("prompts", "kv", "error", "words"),
    [
        (["x" * 600], None, PromptTooLong, "600 tokens"),
        ([list(b"ok"), 7], None, InvalidRequest, "a prompt is a text or a list of token ids"),
        (["ok"], KVChoice(budget=8, recent=16), BudgetTooSmall, "raise it to 20"),
    ],
)
def test_what_cannot_be_served_raises_and_leaves_nothing_running(llm: LLM, prompts, kv, error, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=words):
        llm.generate(["fine", *prompts], TEN, kv=kv)
    assert llm._loop.idle


@pytest.mark.parametrize("character", [" ", "x"])
def test_a_text_that_cannot_fit_is_refused_at_once_and_not_tokenised(
    llm: LLM, character: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm.tokenizer, "encode", lambda *_: pytest.fail("tokenised"))
    text = character * 8 * 2**20
    started = time.process_time()
    with pytest.raises(PromptTooLong, match="prompt has 8,388,608 characters"):
        llm.generate(text, TEN)
    for role in ("user", "system"):
        with pytest.raises(PromptTooLong, match="messages has 8,388,"):
            next(llm.stream_chat([{"role": role, "content": text}], TEN))
    assert time.process_time() - started < 1


def test_a_sampling_field_as_an_argument_is_rejected_with_the_correct_call(llm: LLM) -> None:
    for method in (llm.generate, llm.chat, llm.stream, llm.stream_chat):
        with pytest.raises(
            TypeError, match=rf"{method.__name__}\(\.\.\., SamplingParams\(max_tokens=5, top_p=0\.9\)\)"
        ):
            method("Hi", max_tokens=5, top_p=0.9)  # type: ignore[call-overload, call-arg, operator]
    with pytest.raises(TypeError, match=r"takes kv_budget as a part of kv: generate\(\.\.\., kv=KVChoice\("):
        llm.generate("Hi", kv_budget=5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="'nope'"):
        llm.generate("Hi", nope=5)  # type: ignore[call-overload]


def test_the_repr_shows_slots_policy_and_size(llm: LLM) -> None:
    held = llm.limits.held_bytes / 1e6
    assert repr(llm).startswith(f"<LLM {llm.model}: 3 slots of 64 entries, policy snapstream, prompts of up to ")
    assert repr(llm).endswith(f"{held:.3g} MB of cache>")


def test_an_unknown_choice_is_refused_by_name(tmp_path: Path) -> None:
    with refusal("kv_bugdet", "kv_budget"):
        LLM(tmp_path, kv_bugdet=5)


@pytest.mark.parametrize("turns", ["reread", "continue"])
def test_the_next_turn_of_a_conversation_prefills_only_what_is_not_cached(llm: LLM, turns: str) -> None:
    """With `reread` the window and an incomplete block are prefilled again; with `continue` nothing is."""
    choices = {"kv_budget": 64, "kv_window": 8, "prompt_tokens": 448, "dtype": "float32", "graphs": "off", "threads": 2}
    caching = LLM(llm.config.model_dir, prefix_store=10**7, kv_turns=turns, **choices)
    messages = [{"role": "user", "content": LONG[:250]}]
    first = caching.chat(messages, TEN)
    assert first.usage.cached_tokens == 0
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And then?"}]
    second = caching.chat(messages, TEN)
    again = 8 + 64 if turns == "reread" else 0
    assert first.usage.prompt_tokens - again <= second.usage.cached_tokens < second.usage.prompt_tokens
    if turns == "reread":
        assert second.text == llm.chat(messages, TEN).text


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"slots": "2"}, "slots is '2'; it must be of type int"),
        ({"kv_elastic": 1}, "kv_elastic is 1; it must be of type bool"),
        ({"prefix_store": 1e9}, "prefix_store is 1000000000.0; it must be of type int or str"),
        ({"kv_select": SnapKV(window=16)}, "a selector with the request, kv=KVChoice\\(select=SnapKV\\(window=16"),
    ],
)
def test_a_choice_of_another_type_is_refused(tmp_path: Path, choices: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        LLM(tmp_path, **choices)


def test_prompts_and_spans_of_another_type_are_refused(llm: LLM) -> None:
    for prompts in (5, None):
        with refusal("prompts", str(prompts)):
            llm.generate(prompts)  # type: ignore[call-overload]
    with refusal("kv_protect", "120"):
        KVChoice(protect=(0, 120))  # type: ignore[arg-type]


def test_sampling_of_another_type_is_refused(llm: LLM) -> None:
    with refusal("sampling", "dict"):
        llm.generate("a", {"max_tokens": 4})  # type: ignore[call-overload]
