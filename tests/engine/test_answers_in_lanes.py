"""A request that keeps every token is answered in its lane if no slot holds as many, beside others in slots."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from ringkv.base.cache_spec import SlotFormat
from ringkv.base.errors import PromptTooLong
from ringkv.base.events import Event, Finished, Token
from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.scheduler.loop import Loop
from tests.engine import tiny

MODELS = {
    "Llama": ("Llama", {}),
    "Gemma3": ("Gemma3", {"sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"] * 2}),
}
FULL, COUNT = KVChoice("full"), 24
LONG, SHORT = tiny.prompt(150, 1), tiny.prompt(90, 2)
LANES = {"lanes": 4, "staged_tokens": 256 + 128}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    changes = {"Gemma3": {"num_hidden_layers": 4}}
    models = {name: (kind, more | changes.get(name, {})) for name, (kind, more) in MODELS.items()}
    return tiny.save_all(tmp_path_factory, models)


def greedy(folder: Path, tokens: list[int], count: int) -> list[int]:
    """Return what transformers answers, which reads the whole text anew for each token."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    text = list(tokens)
    with torch.inference_mode():
        for _ in range(count):
            text.append(int(model(torch.tensor([text]), use_cache=False).logits[0, -1].argmax()))
    return text[len(tokens) :]


def asked(tokens: list[int], count: int, name: str, kv: KVChoice | None = None) -> Request:
    return tiny.request(tokens, name, kv, max_tokens=count, temperature=0, ignore_eos=True)


def served(loop: Loop, *calls: Sequence[Request]) -> tuple[dict[str, list[int]], dict[str, Finished]]:
    """Serve calls of requests with one prompt to their end. Returns the tokens and the last event of each request."""
    events: list[Event] = [event for requests in calls for event in loop.submit(*requests)]
    while not loop.idle:
        events += loop.step()
    tokens = {request.id: list[int]() for requests in calls for request in requests}
    for event in events:
        if isinstance(event, Token):
            tokens[event.request_id].append(event.token)
    return tokens, {event.request_id: event for event in events if isinstance(event, Finished)}


@pytest.mark.parametrize("speculate", [0, 3])
@pytest.mark.parametrize("encoding", ["plain", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_answer_in_a_lane_is_that_of_transformers_and_others_are_as_alone(
    folders: dict[str, Path], name: str, encoding: str, speculate: int
) -> None:
    config = tiny.config(folders[name], slot_format=SlotFormat(encoding), speculate=speculate, **LANES)
    full = asked(LONG, COUNT, "full", FULL)
    others = [asked(SHORT, COUNT, each) for each in ("a", "b")]
    alone, _ = served(Loop(build(config)), *([other] for other in others))
    loop = Loop(build(config))
    for _ in range(2):  # the lane and the slot are as before
        answers, finished = served(loop, [full], *([other] for other in others))
        assert answers["full"] == greedy(folders[name], LONG, COUNT)
        assert {each: answers[each] for each in ("a", "b")} == alone
        kv = finished["full"].usage.kv
        assert (kv.policy, kv.kept, kv.evicted, kv.capacity) == ("full", len(LONG), 0, 256)
        assert kv.bytes_held == 256 * loop.engine.limits.entry_bytes
        assert len(loop.scheduler._lanes.free) == LANES["lanes"]


def test_answer_ends_when_its_lane_is_full(folders: dict[str, Path]) -> None:
    loop = Loop(build(tiny.config(folders["Llama"], **LANES)))
    _, finished = served(loop, [asked(tiny.prompt(250, 3), 100, "full", FULL)])
    assert (finished["full"].reason, finished["full"].usage.completion_tokens) == ("length", 256 - 250 + 1)


def test_answers_of_one_prompt_each_have_a_lane(folders: dict[str, Path]) -> None:
    loop = Loop(build(tiny.config(folders["Llama"], **LANES)))
    requests = [asked(LONG, COUNT, each, FULL) for each in ("a", "b")]
    expected = greedy(folders["Llama"], LONG, COUNT)
    assert served(loop, requests)[0] == {"a": expected, "b": expected}


def test_short_prompt_does_not_wait_for_the_lane(folders: dict[str, Path]) -> None:
    loop = Loop(build(tiny.config(folders["Llama"], **LANES)))
    loop.submit(asked(LONG, 100, "full", FULL))
    loop.submit(asked(tiny.prompt(200, 4), 4, "long"))
    loop.submit(asked(SHORT, 4, "short"))
    ended: list[str] = []
    while not loop.idle:
        ended += [event.request_id for event in loop.step() if isinstance(event, Finished)]
    assert ended == ["short", "full", "long"]


def test_every_token_is_known_to_be_kept(folders: dict[str, Path]) -> None:
    engine = build(tiny.config(folders["Gemma3"], **LANES))
    request = tiny.request(LONG, kv=FULL)
    tiny.stage(engine, request)
    kept = engine.kept(0, FULL)
    assert [each.shape for each in kept] == [(2, 32), (2, 150)] * 2
    assert np.array_equal(kept[0][1], np.arange(118, 150))
    assert np.array_equal(kept[1][1], np.arange(150))


@pytest.mark.parametrize(
    "changes",
    [{"lanes": 1}, {"slot_format": SlotFormat(reading="ragged")}, {"slot_format": SlotFormat("zipcache")}],
)
def test_engines_that_cannot_refuse_and_say_what_to_do(folders: dict[str, Path], changes: dict) -> None:
    engine: LocalEngine = build(tiny.config(folders["Llama"], **LANES | changes))
    with pytest.raises(PromptTooLong, match="start with kv_policy full"):
        engine.admit(tiny.request(LONG, kv=FULL))


def test_a_budget_is_a_limit(folders: dict[str, Path]) -> None:
    engine = build(tiny.config(folders["Llama"], **LANES))
    with pytest.raises(PromptTooLong, match="kv_budget holds 64; raise it or leave it out"):
        engine.admit(tiny.request(LONG, kv=KVChoice("full", budget=64)))
