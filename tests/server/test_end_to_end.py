"""`ringkv serve` as a user starts it, with a real engine in its own process, driven by the openai client."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from ringkv import LLM, SamplingParams
from ringkv.base.engine import prefill
from ringkv.base.request import Request
from tests import chat_model

LONG = "All that a request holds is its budget. " * 10
OPTIONS = ("--kv-budget", "64", "--kv-window", "8", "--dtype", "float32", "--graphs", "off", "--max-prompt", "448")
WITHOUT_WINDOW = OPTIONS[:2] + OPTIONS[4:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model.save(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with _served(folder, *OPTIONS) as address:
        yield address


@contextmanager
def _served(folder: Path, *options: str) -> Iterator[str]:
    with _serving(folder, *options) as server:
        try:
            yield _address(server)
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(timeout=30) == 0


def _serving(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = ["serve", "--model", str(folder), "--served-model-name", "tiny", "--port", "0", "--slots", "3", *options]
    start = [sys.executable, "-c", "from ringkv.cli.main import main; main()", *command]
    return subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _address(server: subprocess.Popen[str]) -> str:
    lines = []
    assert server.stdout is not None
    for line in server.stdout:
        lines.append(line)
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]
    raise AssertionError("the server did not start: " + "".join(lines))


@pytest.fixture
def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0)


def complete(client: openai.OpenAI, prompt: str, **more: Any) -> Any:
    return client.completions.create(model="tiny", prompt=prompt, max_tokens=12, temperature=0, **more)


def test_an_answer_over_http_equals_that_of_llm(client: openai.OpenAI, folder: Path) -> None:
    settings = {"kv_budget": 64, "kv_window": 8, "dtype": "float32", "graphs": "off", "prompt_tokens": 448, "slots": 3}
    want = LLM(folder, **settings).generate(LONG, SamplingParams(max_tokens=12))
    got = complete(client, LONG)
    assert got.choices[0].text == want.text
    kv = got.usage.model_dump()["kv"]
    assert (kv["kept"], kv["evicted"]) == (want.usage.kv.kept, want.usage.kv.evicted)
    assert kv["bytes_held"] == want.usage.kv.bytes_held


def test_concurrent_streams_give_the_same_text_as_single_requests(client: openai.OpenAI) -> None:
    prompts = [LONG[n:] for n in range(8)]
    alone = [complete(client, prompt).choices[0].text for prompt in prompts]

    def streamed(prompt: str) -> str:
        return "".join(chunk.choices[0].text for chunk in complete(client, prompt, stream=True))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(streamed, prompts)) == alone


def test_a_client_that_leaves_frees_its_slot(client: openai.OpenAI, address: str) -> None:
    for _ in range(4):  # more than there are slots
        stream = client.completions.create(
            model="tiny", prompt="x", max_tokens=400, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        stream.close()
    deadline = time.monotonic() + 20
    while 'ringkv_slots_free{model="tiny"} 3' not in (metrics := httpx.get(f"{address}/metrics").text):
        assert time.monotonic() < deadline, metrics
        time.sleep(0.05)
    assert complete(client, "y").usage.completion_tokens > 0


def test_a_prompt_too_long_is_a_400_with_the_number(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="600 tokens"):
        complete(client, "x" * 600)
    with pytest.raises(openai.NotFoundError, match="nothere"):
        client.completions.create(model="nothere", prompt="x")


def test_without_a_seed_answers_differ(client: openai.OpenAI) -> None:
    answers = client.completions.create(model="tiny", prompt="a", max_tokens=12, n=3, temperature=1.5)
    assert len({choice.text for choice in answers.choices}) == 3


@pytest.mark.slow  # starts servers
def test_a_second_signal_ends_running_answers_with_what_they_have(folder: Path) -> None:
    with _serving(folder, *OPTIONS) as server:
        client = openai.OpenAI(base_url=f"{_address(server)}/v1", api_key="unused", max_retries=0)
        more = {"ignore_eos": True}
        stream = client.completions.create(model="tiny", prompt="x", max_tokens=500, stream=True, extra_body=more)
        chunks = iter(stream)
        next(chunks)
        for _ in range(2):
            server.send_signal(signal.SIGINT)
            time.sleep(0.2)
        reasons = [chunk.choices[0].finish_reason for chunk in chunks]
        assert reasons[-1] in ("abort", "length")
        assert server.wait(timeout=30) == 0
        assert server.stdout is not None
        assert "Traceback" not in server.stdout.read()


def test_the_kept_tokens_are_those_that_llms_engine_keeps(client: openai.OpenAI, address: str, folder: Path) -> None:
    prompt = LONG + "Which words are these?"
    answer = complete(client, prompt, extra_body={"kv_trace": True})
    got = httpx.get(f"{address}/ringkv/kept/{answer.id}").json()
    llm = LLM(folder, kv_budget=64, kv_window=8, dtype="float32", graphs="off", prompt_tokens=448, slots=3)
    tokens = llm.tokenizer.encode(prompt)
    prefill(llm._engine, Request("r", tuple(tokens), SamplingParams()))
    kept = llm._engine.kept(0, llm._engine.default_kv)
    held = [{int(token) for token in row} for layer in kept for row in layer]
    assert got["tokens"] == len(tokens)
    assert (got["layers"], got["heads"], got["of"]) == (len(kept), len(kept[0]), len(held))
    assert got["counts"] == [sum(token in one for one in held) for token in range(len(tokens))]
    assert 0 < sum(got["counts"]) < len(held) * len(tokens)
    one = httpx.get(f"{address}/ringkv/kept/{answer.id}", params={"layer": 1, "head": 0}).json()
    assert {token for token, count in enumerate(one["counts"]) if count} == {int(token) for token in kept[1][0]}


def test_a_watcher_sees_a_request_in_its_slot(client: openai.OpenAI, address: str) -> None:
    with httpx.stream("GET", f"{address}/ringkv/live", timeout=20) as live:
        events = (json.loads(line.removeprefix("data: ")) for line in live.iter_lines() if line.startswith("data: "))
        told, before = next(events), next(events)
        assert told["layers"] > 0
        assert {"full", "streaming", "snapkv", "snapstream"} <= set(told["policies"])
        assert "arkvale" not in told["policies"]  # its slots have no pages
        stream = client.completions.create(
            model="tiny", prompt=LONG[:90], max_tokens=400, n=3, stream=True, extra_body={"ignore_eos": True}
        )
        id = next(iter(stream)).id
        slots = next(tick["slots"] for tick in events if len(tick["slots"]) == 3)
        assert {slot["id"] for slot in slots} == {id}
        assert {slot["capacity"] for slot in slots} == {slots[0]["protected"] + slots[0]["ring"]} == {64}
        for _ in stream:
            pass
        last = next(tick for tick in events if not tick["slots"] and not tick["running"])
        assert last["free_slots"] == told["limits"]["slots"]
        assert last["tokens"] - before["tokens"] == 3 * 400
        assert last["prompt_tokens"] > before["prompt_tokens"]
        assert last["steps"] - before["steps"] >= 400


@pytest.mark.slow  # starts servers
def test_a_conversation_continues_from_slots_that_heads_divide(folder: Path) -> None:
    """As the server does by default, and as one request asks."""
    divided = ("--kv-turns", "continue", "--kv-heads", "global", "--kv-select", "kvzip", "--prefix-store", "10MB")
    with _served(folder, *(WITHOUT_WINDOW + divided)) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0)
        each: tuple[dict[str, str], ...] = ({}, {"kv_heads": "global", "kv_select": "keydiff"}, {"kv_heads": "equal"})
        for own in each:
            prompt, cached = LONG[:200], []
            for question in ("", " And why?", " Who says so?"):
                prompt += question
                answer = complete(client, prompt, extra_body={"cache_salt": str(own), **own})
                cached.append(answer.usage.prompt_tokens_details.cached_tokens)
                assert answer.usage.model_dump()["kv"]["capacity"] == 64
                assert ("heads" in answer.usage.model_dump()["kv"]) == (own.get("kv_heads") != "equal")
                prompt += answer.choices[0].text
            assert cached[0] == 0
            assert 200 <= cached[1] < cached[2]
        with pytest.raises(openai.BadRequestError, match="kv_turns"):
            complete(client, "x", extra_body={"kv_select": "tova"})
        complete(client, LONG[:200], extra_body={"kv_select": "tova", "kv_turns": "reread"})
