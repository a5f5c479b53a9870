"""Structured answers of a model with random weights at temperature 1: every sampled answer fits its grammar."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringkv import LLM, SamplingParams
from ringkv.base.errors import InvalidRequest
from ringkv.text.grammar import choice, json_schema, regex
from tests import chat_model


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = chat_model.save(tmp_path_factory.mktemp("model"))
    return LLM(folder, kv_budget=64, kv_window=8, prompt_tokens=448, slots=3, dtype="float32", graphs="off", threads=2)


def sample(llm: LLM, grammar: str, seed: int = 0, **more: Any) -> Any:
    return llm.generate("x", SamplingParams(max_tokens=900, temperature=1.0, seed=seed, grammar=grammar, **more))


LEAVES = [
    ({"type": "integer", "minimum": -5, "maximum": 40}, lambda v: type(v) is int and -5 <= v <= 40),
    ({"type": "string", "maxLength": 4}, lambda v: isinstance(v, str) and len(v) <= 4),
    ({"enum": ["a", 1, None]}, lambda v: v in ("a", 1, None)),
    ({"type": "boolean"}, lambda v: isinstance(v, bool)),
]


@given(st.lists(st.sampled_from(LEAVES), min_size=1, max_size=3), st.integers(0, 2**31), st.booleans())
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_document_has_the_fields_and_values_that_its_schema_names(
    llm: LLM, leaves: Any, seed: int, more: bool
) -> None:
    fields = {f"f{n}": schema for n, (schema, _) in enumerate(leaves)}
    schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    result = sample(llm, json_schema(schema), seed, **({"logprobs": 1, "top_p": 0.9} if more else {}))
    assert result.finish_reason == "stop"
    document = json.loads(result.text)
    assert list(document) == list(fields)
    assert all(fits(document[f"f{n}"]) for n, (_, fits) in enumerate(leaves))


def test_requests_with_and_without_a_grammar_share_a_batch(llm: LLM) -> None:
    free = SamplingParams(max_tokens=12, temperature=1.0, seed=3)
    alone = llm.generate("the sea", free)
    guided = SamplingParams(max_tokens=12, temperature=1.0, seed=3, grammar=choice(["left", "right"]))
    loop = llm._loop
    from ringkv.base.request import Request

    tokens = tuple(b"the sea")
    for name, sampling in (("free", free), ("guided", guided)):
        assert loop.submit(Request(name, tokens, sampling, eos=llm.tokenizer.eos_ids)) == []
    tokens_of: dict[str, list[int]] = {"free": [], "guided": []}
    while not loop.idle:
        for event in loop.step():
            if hasattr(event, "token"):
                tokens_of[event.request_id].append(event.token)
    assert tuple(tokens_of["free"]) == alone.token_ids
    assert llm.tokenizer.decode(tokens_of["guided"]) in ("left", "right")


def test_an_invalid_grammar_is_refused(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="grammar"):
        sample(llm, regex("(("))
    with pytest.raises(InvalidRequest, match="ignore_eos"):
        SamplingParams(grammar=regex("a"), ignore_eos=True)
    assert sample(llm, regex("ab")).text == "ab"  # other requests still work
