"""API keys: who may send requests."""

import asyncio
import hmac
import re
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI

from ringkv.server.app import make_app
from ringkv.server.key_files import read_keys
from ringkv.server.protocol import keys
from ringkv.server.protocol.guard import Access
from ringkv.server.protocol.keys import ApiKeys, Caller
from ringkv.server.run.serving import LoadedModel
from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import NAMES, Served, serving
from tests.server.echo import channel

ALICE, BOB = "alice-0123456789", "bob-0123456789abc"
KEYS = read_keys((), {"RINGKV_API_KEYS": f"alice:{ALICE} bob:sha256:{sha256(BOB.encode()).hexdigest()}"})
LOCKED = Access(ApiKeys(KEYS))


ENDLESS = {"/ringkv/live"}  # a stream, which test_live reads with a key
OPEN = {"/health", "/ready", "/", "/dashboard", f"/assets/{NAMES[0]}"}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def locked(tokenizer: Tokenizer, lines: list[str]) -> Iterator[Served]:
    with serving(channel(), tokenizer, None, log=lines.append, access=LOCKED) as served:
        yield served


def paths_of(app: Any) -> Iterator[tuple[str, str]]:
    """Yield method and path of every route, with values for the parameters of paths."""
    for route in app.routes:
        if nested := getattr(route, "original_router", None):  # how newer versions of FastAPI include routers
            yield from paths_of(nested)
        for method in getattr(route, "methods", None) or ():
            yield method, re.sub(r"\{[^}]*\}", NAMES[0], route.path)


def ask(app: FastAPI, method: str, path: str, **headers: str) -> httpx.Response:
    async def once() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(once())


def test_every_route_needs_a_key_except_health_ready_and_the_pages_files(tokenizer: Tokenizer) -> None:
    app = make_app([LoadedModel(channel(), tokenizer, None, NAMES)], access=LOCKED)
    routes = {
        *paths_of(app),
        ("GET", "/nothing"),
        ("PUT", "/v1/completions"),
        ("POST", "/health/"),
        ("GET", "/health//"),
        ("GET", "/assets"),
        ("GET", "/dashboard/"),
    }
    assert {"/v1/chat/completions", "/metrics", "/docs", "/openapi.json", "/tokenize", *ENDLESS} <= {
        path for _, path in routes
    }
    for method, path in routes:
        answer = ask(app, method, path)
        assert (answer.status_code == 401) == (path not in OPEN), (method, path, answer.status_code)
        if path not in ENDLESS:
            assert ask(app, method, path, **bearer(ALICE)).status_code != 401


def test_a_websocket_is_closed_without_a_key(tokenizer: Tokenizer) -> None:
    app, sent = make_app([LoadedModel(channel(), tokenizer, None, NAMES)], access=LOCKED), list[Any]()

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    asyncio.run(app({"type": "websocket", "path": "/v1/models", "headers": []}, receive, send))
    assert sent == ["websocket.close"]


def test_openais_client_gets_its_own_error_for_a_wrong_key(locked: Served) -> None:
    def client(key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{locked.root}/v1", api_key=key, max_retries=0)

    for key in (ALICE, BOB):
        assert client(key).completions.create(model=NAMES[0], prompt="ab", max_tokens=3).choices[0].text == "aba"
    with pytest.raises(openai.AuthenticationError) as caught:
        client("alice-012345678x").models.list()
    assert caught.value.code == "invalid_api_key"
    assert caught.value.response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("sent", ["", "Bearer", f"Basic {ALICE}", ALICE, f"Bearer {ALICE} x", "Bearer \xff"])
def test_what_is_not_a_bearer_token_is_401(locked: Served, sent: str) -> None:
    assert locked.http.get("/v1/models", headers={b"authorization": sent.encode("latin-1")}).status_code == 401


def test_a_key_is_compared_with_all_keys_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = list[tuple[bytes, bytes]]()

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(keys, "compare_digest", compare)
    for key in (ALICE, BOB):
        scope = {"path": "/v1/models", "headers": [(b"authorization", f"Bearer {key}".encode())]}
        ApiKeys(KEYS).identify(scope)
    assert len(compared) == 4
    assert {len(one) for pair in compared for one in pair} == {32}


def test_the_log_names_the_key_by_its_label(locked: Served, lines: list[str]) -> None:
    locked.http.get("/v1/models", headers=bearer(ALICE))
    locked.http.get("/v1/models", headers=bearer("wrong-key-0123456"))
    deadline = time.monotonic() + 10  # a line is logged after its answer
    while len(lines) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [re.sub(r"[\d,]+ ms", "N ms", line) for line in lines] == [
        "GET /v1/models 200 N ms, key alice",
        "GET /v1/models 401 N ms, invalid_api_key",
    ]


@pytest.mark.parametrize("shared", [False, True])
def test_prompts_of_two_keys_share_cached_tokens_only_if_asked(tokenizer: Tokenizer, shared: bool) -> None:
    with serving(channel(), tokenizer, None, access=Access(ApiKeys(KEYS, shared))) as served:
        for key, salt in ((ALICE, "s"), (BOB, "s"), (ALICE, "s"), (ALICE, None)):
            body = {"prompt": "ab", "max_tokens": 1, "cache_salt": salt}
            assert served.http.post("/v1/completions", json=body, headers=bearer(key)).status_code == 200
        alices, bobs, again, plain = (request.salt for request in served.engine.submitted)
        owners = [request.owner for request in served.engine.submitted]
    assert owners == ["alice", "bob", "alice", "alice"]
    assert alices == again != plain
    assert (alices == bobs) == shared
    assert shared == (alices == "s")


def test_a_salt_cannot_be_chosen_to_meet_another_keys() -> None:
    victim = Caller("bob", shares_prefixes=False).salt("")
    assert victim not in (Caller("mallory", False).salt(sent) for sent in ("", victim, "bob", "\0bob", "bob\0"))
