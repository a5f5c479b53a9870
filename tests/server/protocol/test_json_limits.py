"""Bounds on the nesting and the number of values of a JSON text."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringkv.base.errors import InvalidRequest
from ringkv.server.protocol.bodies import JSONLimits, check_json

TEXTS = st.text(alphabet='ab"\\,:[]{}é\n') | st.text()
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=30,
)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def keys(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(keys, value.values()))
    return sum(map(keys, value)) if isinstance(value, list) else 0


def values(value: Any) -> int:
    """Count every value; an empty array or object counts twice."""
    if not isinstance(value, dict | list):
        return 1
    return 1 + sum(map(values, value.values() if isinstance(value, dict) else value)) + (not value)


def is_accepted(text: str, limits: JSONLimits) -> bool:
    try:
        check_json(text.encode(errors="replace"), limits)
    except InvalidRequest:
        return False
    return True


@given(DOCUMENTS, st.booleans())
def test_a_document_passes_at_exactly_its_own_measures(document: Any, ascii: bool) -> None:
    text = json.dumps(document, ensure_ascii=ascii)
    exact = (depth(document), keys(document), values(document))
    assert is_accepted(text, JSONLimits(*exact))
    for index in range(3):
        less = list(exact)
        less[index] -= 1
        if exact[index] > (index == 2):  # a scalar is one value and is not bounded
            assert not is_accepted(text, JSONLimits(*less)), less


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"[" * 300 + b"]" * 300, "nested more than 256 deep"),
        (b'{"a":' * 300, "nested more than 256 deep"),
        (b"{" + b",".join(b'"k%d":1' % n for n in range(20_000)) + b"}", "more than 16,384 keys"),
        (b"[" + b"1," * 300_000 + b"1]", "more than 262,144 values"),
        ('{"a": 1}'.encode("utf-16"), "zero byte"),
        ('{"a": 1}'.encode("utf-32"), "zero byte"),
    ],
)
def test_what_would_stall_the_parser_is_refused(text: bytes, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        check_json(text, JSONLimits())


def test_a_text_may_have_any_number_of_commas_and_brackets() -> None:
    check_json(json.dumps({"prompt": '{[,:"' * 100_000}).encode(), JSONLimits())


@pytest.mark.parametrize(
    "text", [b'"' + b'\\"' * 500_000, b'"' * 1_000_001, b'["' + b"\\" * 1_000_001, b'"a' * 500_000]
)
def test_broken_strings_take_linear_time(text: bytes) -> None:
    started = time.process_time()
    check_json(text + b"," * 20_000, JSONLimits())
    assert time.process_time() - started < 2
