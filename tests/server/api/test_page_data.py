"""/ringkv/kept/ID: which prompt tokens a request kept, and who may read it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
import toy

from ringkv.base.kv import KVChoice
from ringkv.base.messages import KeptTokens
from ringkv.scheduler.traces import packed
from ringkv.server.api.page_data import counts, rows_of
from ringkv.server.protocol.guard import Access
from ringkv.server.protocol.keys import ApiKeys
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import Served, serving
from tests.server.echo import LIMITS, EchoEngine, InProcess
from tests.server.protocol.test_keys import ALICE, BOB, KEYS, bearer

HEADS = (2, 3, 2)
PROMPT = "x" * 40
FIELDS = {"max_tokens": 1, "kv_budget": 24, "kv_trace": True}  # of a ring of 20 entries behind 4 sinks
KEPT = [*[1] * 4, *[0] * 16, *[1] * 20]


def engine() -> InProcess:
    return InProcess(EchoEngine(replace(LIMITS, heads=HEADS), KVChoice("streaming")))


@pytest.fixture
def traced(tokenizer: Tokenizer) -> Iterator[Served]:
    with serving(engine(), tokenizer, None) as served:
        yield served


def asked(served: Served, prompt: Any = PROMPT, **fields: Any) -> str:
    """Return the id of an answer."""
    got = served.post("completions", prompt=prompt, **FIELDS | fields)
    assert got.status_code == 200, got.text
    return str(got.json()["id"])


def kept(served: Served, id: str, **query: Any) -> httpx.Response:
    return served.http.get(f"/ringkv/kept/{id}", params=query)


@pytest.mark.parametrize(
    ("query", "of"),
    [
        ({}, 7),
        ({"layer": "", "head": ""}, 7),
        ({"layer": 0}, 2),
        ({"layer": 1}, 3),
        ({"head": 2}, 1),
        ({"head": 0}, 3),
        ({"layer": 2, "head": 1}, 1),
    ],
    ids=str,
)
def test_each_token_is_counted_by_the_heads_that_kept_it(traced: Served, query: dict[str, Any], of: int) -> None:
    got = kept(traced, id := asked(traced), **query).json()
    assert got.pop("counts") == [of * one for one in KEPT]
    ring = {"sinks": 4, "selected": 0, "protected": 4, "base": 4, "ring": 20, "again": 20}
    want = {"id": id, "tokens": 40, "layers": 3, "heads": 3, "of": of, "policy": "streaming", "budget": 24}
    assert got == want | {"layout": ring}


def test_a_prompt_that_is_kept_whole_is_all_ones(traced: Served) -> None:
    id = asked(traced, "abc", kv_policy="full", kv_budget=None)
    assert traced.engine._loop.kept(f"{id}-0-0").bits is None  # type: ignore[union-attr]
    assert kept(traced, id).json()["counts"] == [7] * 3
    assert kept(traced, id, layer=1).json()["counts"] == [3] * 3


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"layer": 3}, "layer is 3; send 0 to 2"),
        ({"layer": -1}, "layer is -1"),
        ({"head": 3}, "head is 3; send 0 to 2"),
        ({"layer": 0, "head": 2}, "head is 2; send 0 to 1"),
        ({"layer": "two"}, "layer"),
        ({"head": 10**30}, "head"),
    ],
    ids=str,
)
def test_a_wrong_layer_or_head_is_400_with_the_range(traced: Served, query: dict[str, Any], said: str) -> None:
    got = kept(traced, asked(traced), **query)
    assert (got.status_code, got.json()["error"]["param"]) == (400, said.split()[0])
    assert said in got.json()["error"]["message"]


def test_without_the_field_nothing_is_remembered(traced: Served) -> None:
    for field in (False, None):
        got = kept(traced, asked(traced, kv_trace=field))
        assert (got.status_code, got.json()["error"]["code"]) == (404, "request_not_found")
        assert "kv_trace" in got.json()["error"]["message"]


@pytest.mark.parametrize("id", ["none", "cmpl-0-0", "%00", "a" * 3000, "\N{SNOWMAN}", "..%2f..", "-0-0"])
def test_an_unknown_id_is_404(traced: Served, id: str) -> None:
    assert kept(traced, id).status_code == 404


def test_the_last_eight_are_remembered(traced: Served) -> None:
    ids = [asked(traced, "y" * (30 + n)) for n in range(10)]
    found = [kept(traced, id) for id in ids]
    assert [got.status_code for got in found] == [404] * 2 + [200] * 8
    assert [got.json()["tokens"] for got in found[2:]] == list(range(32, 40))


def test_the_prompts_of_one_call_have_a_number_each(traced: Served) -> None:
    id = asked(traced, ["y" * 30, "z" * 35], n=2)
    assert [kept(traced, name).json()["tokens"] for name in (id, f"{id}-0-0", f"{id}-1-0")] == [30, 30, 35]
    assert kept(traced, f"{id}-0-1").status_code == 404  # the same prompt keeps the same tokens


def test_only_the_key_that_sent_the_request_may_read_it(tokenizer: Tokenizer) -> None:
    with serving(engine(), tokenizer, None, access=Access(ApiKeys(KEYS))) as served:
        served.http.headers.update(bearer(ALICE))
        id = asked(served)
        assert kept(served, id).status_code == 200
        served.http.headers.update(bearer(BOB))
        theirs, unknown = kept(served, id), kept(served, "cmpl-none")
        del served.http.headers["authorization"]
        assert kept(served, id).status_code == 401
    assert (theirs.status_code, unknown.status_code) == (404, 404)
    assert theirs.text == unknown.text.replace("cmpl-none", id)


def test_a_chat_and_a_response_are_remembered_by_their_ids(tokenizer: Tokenizer, model_dir: Any) -> None:
    with serving(engine(), tokenizer, ChatTemplate.from_directory(model_dir)) as served:
        messages = [{"role": "user", "content": PROMPT}]
        for path, body in (("chat/completions", {"messages": messages}), ("responses", {"input": PROMPT})):
            answer = served.post(path, **body, kv_budget=24, kv_trace=True).json()
            assert kept(served, answer["id"]).json()["tokens"] >= 40


def test_a_decode_worker_refuses_the_field_by_name(traced: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    free = replace(traced.engine.stats(), prefill_workers=1)
    monkeypatch.setattr(traced.engine, "stats", lambda: free)
    got = traced.post("completions", prompt="ab", **FIELDS)
    assert (got.status_code, got.json()["error"]["param"]) == (400, "kv_trace")


def test_counts_are_those_of_a_loop_over_bits() -> None:
    rng = np.random.default_rng(7)
    n = 21
    layers = [np.stack([rng.permutation(n)[:9] for _ in range(heads)]) for heads in (2, 1)]
    layers[1][0, -3:] = -1  # a head that holds fewer
    kept = KeptTokens("", n, (2, 1), "snapstream", toy.layout(n, KVChoice(budget=9), 9), packed(layers, n))
    held = [{int(token) for token in row if token >= 0} for layer in layers for row in layer]
    for layer, head, rows in (
        (None, None, [0, 1, 2]),
        (0, None, [0, 1]),
        (1, None, [2]),
        (None, 0, [0, 2]),
        (0, 1, [1]),
    ):
        assert rows_of(kept.heads, layer, head) == rows
        assert counts(kept, rows) == [sum(token in held[row] for row in rows) for token in range(n)]
