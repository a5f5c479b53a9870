"""Several models in one server, each with an engine of its own."""

from collections.abc import Iterator

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from toy import limits

from ringkv.cli.commands.serve import names_of
from ringkv.server.run.serving import LoadedModel, check_names
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.tokenizer import Tokenizer
from tests.refusals import refusal
from tests.server.conftest import NAMES, Served, serving
from tests.server.echo import InProcess, ToyEngine, channel

OTHER = "short"
LIMITS = limits(slots=2, vocab=258, capacity=64, prompt_tokens=16, context=600, held_bytes=1000)


@pytest.fixture
def two(tokenizer: Tokenizer) -> Iterator[Served]:
    """A server of the echo, and of one that takes 16 tokens and has a chat template."""
    other = LoadedModel(
        InProcess(ToyEngine(LIMITS)), tokenizer, ChatTemplate({"default": "{{ messages[0].content }}"}, {}), (OTHER,)
    )
    with serving(channel(), tokenizer, None, others=[other]) as served:
        yield served


def samples(served: Served, name: str) -> dict[str, float]:
    """Return a metric's values by model."""
    families = text_string_to_metric_families(served.http.get("/metrics").text)
    return {one.labels["model"]: one.value for family in families for one in family.samples if one.name == name}


def test_a_request_goes_to_the_model_that_it_names_and_else_to_the_first(two: Served) -> None:
    for model, expected in ((NAMES[0], NAMES[0]), (NAMES[1], NAMES[1]), (OTHER, OTHER), (None, NAMES[0])):
        got = two.post("completions", model=model, prompt="abc", max_tokens=2)
        assert (got.status_code, got.json()["model"]) == (200, expected)
    assert samples(two, "ringkv_prompt_tokens_total") == {NAMES[0]: 3 * 3, OTHER: 3}


def test_an_unknown_model_is_refused_with_the_names_of_all(two: Served) -> None:
    with pytest.raises(openai.NotFoundError, match=f"use {NAMES[0]} or {NAMES[1]} or {OTHER}"):
        two.client.completions.create(model="other", prompt="x")


def test_each_model_has_its_own_limits_and_its_own_chat_template(two: Served) -> None:
    cards = {card.id: card.model_extra for card in two.client.models.list().data}
    assert {name: extra and (extra["root"], extra["max_model_len"]) for name, extra in cards.items()} == {
        NAMES[0]: (NAMES[0], 513),
        NAMES[1]: (NAMES[0], 513),
        OTHER: (OTHER, 17),
    }
    assert two.post("completions", model=OTHER, prompt="a" * 17).json()["error"]["code"] == "context_length_exceeded"
    assert two.post("completions", model=NAMES[0], prompt="a" * 17, max_tokens=1).status_code == 200
    messages = [{"role": "user", "content": "hello"}]
    assert two.post("chat/completions", model=NAMES[0], messages=messages).status_code == 400
    answer = two.post("chat/completions", model=OTHER, messages=messages, max_tokens=1).json()
    assert answer["usage"]["prompt_tokens"] == 5


def test_tokenizing_and_responses_go_to_the_model_too(two: Served) -> None:
    assert two.http.post("/tokenize", json={"model": OTHER, "prompt": "a"}).json()["max_model_len"] == 17
    assert two.http.post("/tokenize", json={"prompt": "a"}).json()["max_model_len"] == 513
    assert two.http.get("/tokenizer_info", params={"model": OTHER}).json()["chat_template"] is not None
    for path in ("/tokenize", "/detokenize"):
        assert two.http.post(path, json={"model": "x", "prompt": "a", "tokens": [1]}).status_code == 404
    assert two.post("responses", model=OTHER, input="hi", max_output_tokens=1).json()["model"] == OTHER


def test_each_models_state_has_its_label(two: Served) -> None:
    assert samples(two, "ringkv_slots") == {NAMES[0]: 4, OTHER: 2}
    assert samples(two, "ringkv_queue_tokens_limit") == {NAMES[0]: 16 * 512, OTHER: 16 * 16}
    assert samples(two, "ringkv_engine_up") == {NAMES[0]: 1, OTHER: 1}


def test_a_server_is_ready_only_if_all_engines_are(two: Served) -> None:
    assert two.http.get("/ready").status_code == 200
    two.engine.alive = False
    refused: httpx.Response = two.http.get("/ready")
    assert (refused.status_code, NAMES[0] in refused.json()["error"]["message"]) == (503, True)
    assert two.post("completions", model=OTHER, prompt="abc", max_tokens=2).status_code == 200


def test_names_are_given_one_for_each_model_or_as_aliases_of_one() -> None:
    assert names_of(["hub/a", "b"], ()) == [("hub/a",), ("b",)]
    assert names_of(["a"], ["x", "y"]) == [("x", "y")]
    assert names_of(["a", "b"], ["x", "y"]) == [("x",), ("y",)]
    with refusal("served_model_name", "2 models .* 1 names"):
        names_of(["a", "b"], ["x"])


def test_two_models_of_one_name_are_refused() -> None:
    check_names([("a", "b"), ("c",)])
    with refusal("model", "named b"):
        check_names([("a", "b"), ("b",)])
