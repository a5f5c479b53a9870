"""Every cache setting reaches the engine over HTTP, and the OpenAPI document describes it."""

from dataclasses import replace
from typing import Any

import pytest

from ringkv.base.selectors import KeyDiff, SnapKV
from ringkv.plan.kv_settings import PER_REQUEST
from tests.server.conftest import Served

# Each setting with a value that is not the default, and the value of the engine's `KVChoice`.
SENT: dict[str, tuple[Any, Any]] = {
    "kv_policy": ("snapkv", "snapkv"),
    "kv_budget": (33, 33),
    "kv_sinks": (2, 2),
    "kv_recent": (0.5, 0.5),
    "kv_window": (8, 8),
    "kv_kernel": (5.0, 5),
    "kv_pooling": ("avg", "avg"),
    "kv_select": ("keydiff", KeyDiff()),
    "kv_heads": ("global", "global"),
    "kv_review": (16, 16),
    "kv_elastic": (False, False),
    "kv_protect": ([[2, 5], [7, 9]], ((2, 5), (7, 9))),
    "kv_turns": ("continue", "continue"),
}
ENDPOINTS = {
    "completions": {"prompt": "abc"},
    "chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "responses": {"input": "hi"},
}
TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", tuple: "array"}


def test_every_setting_is_sent_here() -> None:
    assert set(SENT) == set(PER_REQUEST)


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("name", SENT)
def test_every_setting_reaches_the_engine(served: Served, path: str, name: str) -> None:
    sent, expected = SENT[name]
    assert served.post(path, **ENDPOINTS[path], **{name: sent}).status_code == 200
    kv, field = served.engine.submitted[-1].kv, str(PER_REQUEST[name].field)
    usual = served.engine.default_kv
    of_selector = PER_REQUEST[name].selectors
    changed = {"select": replace(SnapKV(), **{field: expected})} if of_selector else {field: expected}
    assert kv == replace(usual, **changed)
    assert kv != usual


def test_several_settings_go_together(served: Served) -> None:
    fields = {name: sent for name, (sent, _) in SENT.items() if name != "kv_select"}
    assert served.post("completions", prompt="abc", **fields).status_code == 200
    kv = served.engine.submitted[-1].kv
    assert kv is not None
    assert kv.select == SnapKV(8, 5, "avg")
    assert (kv.policy, kv.budget, kv.sinks, kv.elastic, kv.turns) == ("snapkv", 33, 2, False, "continue")


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"kv_select": "keydiff", "kv_kernel": 5}, "kv_kernel", "kv_select keydiff takes none"),
        ({"kv_kernel": 4}, "kv_kernel", "it must be odd"),
        ({"kv_select": "x"}, "kv_select", "one of snapkv, tova, keydiff, kvzip"),
        ({"kv_elastic": "no"}, "kv_elastic", "boolean"),
        ({"kv_scissors": 4}, "kv_scissors", "kv_scissors is not a field"),
    ],
)
def test_an_invalid_setting_is_a_400_with_its_name(
    served: Served, fields: dict[str, Any], param: str, text: str
) -> None:
    got = served.post("completions", prompt="abc", **fields)
    error = got.json()["error"]
    assert (got.status_code, error["param"]) == (400, param)
    assert text in error["message"]


@pytest.mark.parametrize("body", ["ChatBody", "CompletionBody", "ResponsesBody"])
def test_the_document_gives_each_settings_type_and_meaning(served: Served, body: str) -> None:
    properties = served.http.get("/openapi.json").json()["components"]["schemas"][body]["properties"]
    for name, setting in PER_REQUEST.items():
        described = properties[name]
        assert described["description"] == f"{setting.help}."
        assert [one["type"] for one in described["anyOf"]] == [TYPES[setting.kind], "null"]
