"""The public surface: the names that users import from ringkv; importing it is cheap."""

import subprocess
import sys
from dataclasses import fields

import pytest

import ringkv

SURFACE = {
    "LLM": {"generate", "stream", "chat", "stream_chat"},
    "Result": {"text", "token_ids", "finish_reason", "usage", "logprobs"},
    "SamplingParams": {"temperature", "max_tokens", "seed", "grammar"},
    "KVChoice": {"policy", "budget", "sinks", "recent", "select"},
    "Selector": {"window", "queries", "prefills_twice", "joins_heads"},
    "SnapKV": {"window", "kernel", "pooling"},
    "TOVA": {"name"},
    "KeyDiff": {"name"},
    "KVzip": {"name"},
    "errors": {"RingKVError", "InvalidRequest", "PromptTooLong", "UnknownModel", "DoesNotFit", "RequestFailed"},
    "grammar": {"json_schema", "json_object", "regex", "choice", "lark"},
}


def test_these_names_are_public_and_no_others() -> None:
    assert set(ringkv.__all__) == set(SURFACE) == set(dir(ringkv)) - {"__version__"}


@pytest.mark.parametrize("name", SURFACE)
def test_a_public_name_has_its_public_attributes(name: str) -> None:
    public = getattr(ringkv, name)
    has = {field.name for field in fields(public)} if hasattr(public, "__dataclass_fields__") else set()
    assert SURFACE[name] <= has | set(dir(public))


def test_every_error_is_a_ringkv_error() -> None:
    found = [one for one in vars(ringkv.errors).values() if isinstance(one, type) and issubclass(one, Exception)]
    assert len(found) > 5
    assert all(issubclass(one, ringkv.errors.RingKVError) for one in found)


def test_a_grammar_of_the_public_module_is_one_for_sampling() -> None:
    schema = ringkv.grammar.json_schema({"type": "object", "properties": {"n": {"type": "integer"}}})
    assert ringkv.SamplingParams(grammar=schema).grammar == schema


def test_importing_ringkv_and_its_errors_loads_neither_torch_nor_transformers() -> None:
    code = "import sys, ringkv; ringkv.errors; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'Engine'"):
        ringkv.Engine  # type: ignore[attr-defined]  # noqa: B018
