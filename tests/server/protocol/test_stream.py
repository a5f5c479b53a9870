import asyncio
import json
import re
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ringkv.base.errors import Draining, InvalidRequest
from ringkv.server.protocol.stream import COMMENT, EventStream, event, until_disconnected
from tests.server.conftest import NAMES, Served
from tests.server.echo import BREAKS, IM_END


def golden(body: str) -> str:
    """Mask the parts of a stream that differ between runs."""
    return re.sub(r'"created":\d+', '"created":0', re.sub(r'"id":"([a-z]+)-[0-9a-f]{32}"', r'"id":"\1-*"', body))


def test_a_completion_is_streamed_in_these_bytes(served: Served) -> None:
    got = served.post("completions", prompt="hé", max_tokens=4, stream=True)
    head = 'data: {"id":"cmpl-*","object":"text_completion","created":0,"model":"echo","choices":[{"index":0,'
    assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert golden(got.text) == (
        head + '"text":"h","logprobs":null,"finish_reason":null}]}\n\n'
        + head + '"text":"","logprobs":null,"finish_reason":null}]}\n\n'
        + head + '"text":"é","logprobs":null,"finish_reason":null}]}\n\n'
        + head + '"text":"h","logprobs":null,"finish_reason":"length"}]}\n\n'
        + "data: [DONE]\n\n"
    )  # fmt: skip


def test_a_chat_is_streamed_in_these_bytes(served: Served) -> None:
    got = served.post("chat/completions", messages=[{"role": "u", "content": ""}], stream=True)
    head = 'data: {"id":"chatcmpl-*","object":"chat.completion.chunk","created":0,"model":"echo","choices":[{"index":0,'
    assert golden(got.text) == (
        head + '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
        + head + '"delta":{"content":"u"},"logprobs":null,"finish_reason":null}]}\n\n'
        + head + '"delta":{"content":":"},"logprobs":null,"finish_reason":null}]}\n\n'
        + head + '"delta":{"content":""},"logprobs":null,"finish_reason":"stop"}]}\n\n'
        + "data: [DONE]\n\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    "extra",
    [
        {"max_tokens": 7},
        {"max_tokens": 7, "stop": "never"},
        {"max_tokens": 50, "stop": "bca"},
        {"max_tokens": 50, "stop_token_ids": [99]},
    ],
)
def test_each_token_has_a_chunk_and_only_the_last_has_a_finish_reason(served: Served, extra: dict[str, Any]) -> None:
    chunks = served.chunks("completions", prompt="abc", **extra)
    counted = served.post("completions", prompt="abc", **extra).json()["usage"]["completion_tokens"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert len(chunks) == counted
    assert reasons[:-1] == [None] * (counted - 1)
    assert reasons[-1] in ("stop", "length")


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_the_chunks_join_to_the_complete_answer(served: Served, path: str) -> None:
    body: dict[str, Any] = {"prompt": "naïve — 🌊", "messages": [{"role": "user", "content": "🌊 ñ"}], "max_tokens": 40}
    streamed = [chunk["choices"][0] for chunk in served.chunks(path, **body)]
    complete = served.post(path, **body).json()["choices"][0]
    joined = "".join(choice["text"] if "text" in choice else choice["delta"]["content"] for choice in streamed)
    assert joined == (complete["text"] if "text" in complete else complete["message"]["content"])
    assert streamed[-1]["finish_reason"] == complete["finish_reason"]


def test_a_code_point_cut_short_is_replaced_in_the_last_chunk(served: Served) -> None:
    texts = [chunk["choices"][0]["text"] for chunk in served.chunks("completions", prompt="🌊", max_tokens=6)]
    assert texts == ["", "", "", "🌊", "", "\ufffd"]


def test_usage_is_streamed_only_on_request(served: Served) -> None:
    body: dict[str, Any] = {"prompt": "ab", "max_tokens": 3}
    assert all("usage" not in chunk for chunk in served.chunks("completions", **body))
    *chunks, last = served.chunks("completions", **body, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in chunks] == [None] * 3
    assert last["choices"] == []
    assert last["usage"] == served.post("completions", **body).json()["usage"]


def test_continuous_usage_grows_with_each_chunk(served: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = served.chunks("completions", prompt="ab", max_tokens=3, stream_options=options)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 3]
    assert [chunk["usage"]["total_tokens"] for chunk in chunks] == [3, 4, 5, 5]


def test_streamed_choices_have_their_index(served: Served) -> None:
    chunks = served.chunks("completions", prompt=["abc", "xy"], max_tokens=4)
    texts = {0: "", 1: ""}
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == {0: "abca", 1: "xyxy"}


def test_streamed_logprobs_equal_those_of_the_complete_answer(served: Served) -> None:
    body: dict[str, Any] = {"prompt": "aé", "max_tokens": 5, "logprobs": 2}
    complete = served.post("completions", **body).json()["choices"][0]["logprobs"]
    parts = [chunk["choices"][0]["logprobs"] for chunk in served.chunks("completions", **body)]
    assert {key: [value for part in parts for value in part[key]] for key in complete} == complete


def test_an_error_in_the_middle_is_an_event_before_done(served: Served) -> None:
    events = served.events("completions", prompt=[97, 98, BREAKS], max_tokens=9)
    assert [json.loads(event)["choices"][0]["text"] for event in events[:2]] == ["a", "b"]
    error = json.loads(events[2])["error"]
    assert "not finite" in error["message"]
    assert (error["type"], error["param"]) == ("server_error", None)
    assert events[3:] == ["[DONE]"]


def test_an_error_before_the_first_token_is_a_status(served: Served) -> None:
    got = served.post("completions", prompt="a" * 30, kv_policy="streaming", kv_budget=3, stream=True)
    assert got.status_code == 400
    assert got.json()["error"]["param"] == "kv_budget"


def test_the_official_client_reads_a_stream(served: Served) -> None:
    stream = served.client.chat.completions.create(
        model=NAMES[0],
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "user:hi"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert last.usage is not None
    assert last.usage.completion_tokens == len(chunks)


def test_an_event_is_one_line_whatever_its_text_contains() -> None:
    text = 'a\nb\r\n\u2028\x85\t"\\🌊'
    line = event({"text": text}).decode()
    assert line.startswith("data: ")
    assert line.endswith("\n\n")
    assert not {"\n", "\r"} & set(line[:-2])
    assert json.loads(line[6:]) == {"text": text}


def test_tokens_after_an_end_of_sequence_are_not_streamed(served: Served) -> None:
    chunks = served.chunks("completions", prompt=[97, IM_END, 98], max_tokens=9)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a", ""]


LONG = {"prompt": "abc", "max_tokens": 590}


@contextmanager
def sent(served: Served, **body: Any) -> Iterator[socket.socket]:
    """Send a request on a raw connection, which is closed at the end."""
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    )
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(f"{head}\r\n\r\n".encode() + content)
        yield connection


def wait_for_submission(served: Served, count: int = 1) -> None:
    while len(served.engine.submitted) < count:
        served.http.get("/health")


@pytest.mark.parametrize("prompts", [1, 3])
def test_leaving_in_the_middle_of_a_stream_frees_its_slots(slow: Served, prompts: int) -> None:
    with sent(slow, **LONG | {"prompt": ["abc"] * prompts}, stream=True) as connection:
        received = b""
        while received.count(b"data: ") < 5:
            received += connection.recv(4096)
    slow.wait_until_free()
    assert sorted(slow.engine.cancelled) == sorted(request.id for request in slow.engine.submitted)
    assert len(slow.engine.cancelled) == prompts


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_anything_came_frees_the_slot(slow: Served, stream: bool) -> None:
    with sent(slow, **LONG | {"prompt": "a" * 512}, stream=stream):
        wait_for_submission(slow)
    slow.wait_until_free()
    assert slow.engine.cancelled == [slow.engine.submitted[0].id]


def test_leaving_the_queue_leaves_the_running_alone(slow: Served) -> None:
    slots = slow.engine.limits.slots
    with sent(slow, **LONG | {"prompt": ["abc"] * slots, "max_tokens": 60}, stream=True) as running:
        wait_for_submission(slow, slots)
        with sent(slow, **LONG, stream=True):
            wait_for_submission(slow, slots + 1)
            assert slow.engine.stats().waiting >= 1
        received = b""
        while b"[DONE]" not in received:
            received += running.recv(65536)
    slow.wait_until_free()
    assert slow.engine.cancelled == [slow.engine.submitted[slots].id]
    assert received.count(b'"finish_reason":"length"') == slots


def test_the_next_request_takes_the_freed_slot(slow: Served) -> None:
    with sent(slow, **LONG | {"prompt": ["abc"] * slow.engine.limits.slots}, stream=True) as connection:
        connection.recv(4096)
    assert slow.post("completions", prompt="xy", max_tokens=3).json()["choices"][0]["text"] == "xyx"


@pytest.mark.parametrize("fails", [False, True])
def test_the_headers_and_comments_come_before_a_late_first_event(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventStream, "EARLY", 0.0)
    monkeypatch.setattr(EventStream, "PAUSE", 0.0)

    async def main() -> list[Any]:
        sent, commented = list[Any](), asyncio.Event()

        async def events() -> AsyncGenerator[bytes, None]:
            await commented.wait()
            if fails:
                raise InvalidRequest("late")
            yield b"data: 1\n\n"

        async def send(message: Any) -> None:
            sent.append(message.get("status") or message["body"])
            if sent.count(COMMENT) == 3:
                commented.set()

        await EventStream(events())({"type": "http"}, asyncio.Event().wait, send)  # type: ignore[arg-type]
        return sent

    sent = asyncio.run(main())
    assert sent[:4] == [200, *[COMMENT] * 3]
    last = [data for data in sent[4:] if data != COMMENT]
    assert len(last) == 2
    assert b"late" in last[0] if fails else last[0] == b"data: 1\n\n"
    assert last[1] == b"data: [DONE]\n\n"


def test_comments_before_the_first_token_count_the_prefilled_tokens_and_clients_ignore_them(
    slow: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EventStream, "EARLY", 0.0)
    monkeypatch.setattr(EventStream, "PAUSE", 0.01)
    body = {"prompt": "a" * 500, "max_tokens": 2}  # 63 chunks of 10 ms
    got = slow.post("completions", **body, stream=True).text
    counts = [int(done) for done in re.findall(r"^: prefill (\d+) of 500\n\n", got, re.MULTILINE)]
    assert len(counts) >= 2
    assert counts == sorted(counts)
    assert got.rindex(": prefill") < got.index("data: ")
    other = {"prompt": "b" * 500, "max_tokens": 2}
    chunks = list(slow.client.completions.create(model=NAMES[0], stream=True, **other))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "bb"
    slow.wait_until_free()
    assert slow.engine.watched == [True, False] * 2


def test_the_engine_is_not_watched_for_a_stream_that_needs_no_comment(slow: Served) -> None:
    slow.engine.watched.clear()
    assert "data: [DONE]" in slow.post("completions", prompt="ab", max_tokens=2, stream=True).text
    assert slow.engine.watched == []


def test_an_early_error_is_raised_before_the_headers() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        raise InvalidRequest("early")
        yield b""

    async def send(_: Any) -> None:
        raise AssertionError

    with pytest.raises(InvalidRequest, match="early"):
        asyncio.run(EventStream(events())({"type": "http"}, asyncio.Event().wait, send))  # type: ignore[arg-type, call-arg]


def test_an_answer_that_the_server_cancels_is_a_draining_error() -> None:
    async def main() -> None:
        forever = asyncio.Event()
        answering = asyncio.create_task(until_disconnected(forever.wait, forever.wait()))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        answering.cancel()
        await answering

    with pytest.raises(Draining, match="before the answer was complete"):
        asyncio.run(main())


@pytest.mark.parametrize("begun", [False, True])
def test_a_stream_that_the_server_cancels_ends_with_an_error(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventStream, "EARLY", 0.0 if begun else 60.0)
    sent = list[Any]()

    async def main() -> None:
        waits, forever, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def events() -> AsyncGenerator[bytes, None]:
            try:
                if begun:
                    yield b"data: 1\n\n"
                waits.set()
                await forever.wait()
            finally:
                closed.set()

        async def send(message: Any) -> None:
            sent.append(message.get("status") or message["body"])

        streaming = asyncio.create_task(EventStream(events())({"type": "http"}, forever.wait, send))  # type: ignore[arg-type]
        await waits.wait()
        streaming.cancel()
        try:
            await streaming
        finally:
            assert closed.is_set()

    if begun:
        asyncio.run(main())
        assert sent[:2] == [200, b"data: 1\n\n"]
        assert b'"code":"draining"' in sent[2]
        assert sent[3:] == [b"data: [DONE]\n\n"]
    else:
        with pytest.raises(Draining):
            asyncio.run(main())
        assert sent == []
