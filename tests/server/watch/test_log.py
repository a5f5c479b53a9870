import json
import re
import time
from collections.abc import Iterator

import pytest

from ringkv.base.log_lines import http_id
from ringkv.server.watch.log import described_as_json
from ringkv.server.watch.tracing import Telemetry
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import NAMES, Served, serving
from tests.server.echo import BREAKS, channel
from tests.server.protocol.test_stream import sent, wait_for_submission

SECRET = "my secret"


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def logged(tokenizer: Tokenizer, lines: list[str]) -> Iterator[Served]:
    with serving(
        channel(seconds=0.01), tokenizer, ChatTemplate({"default": "{{ messages[0].content }}"}, {}), log=lines.append
    ) as served:
        yield served


def written(lines: list[str], count: int = 1) -> list[str]:
    """Wait for `count` lines and return all; a line is written after its answer was sent."""
    deadline = time.monotonic() + 10
    while len(lines) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return lines


def test_a_line_has_method_path_status_time_and_tokens(logged: Served, lines: list[str]) -> None:
    logged.post("completions", prompt=SECRET, max_tokens=5)
    found = re.fullmatch(r"POST /v1/completions 200 ([\d,]+) ms, 9 \+ 5 tokens", written(lines)[-1])
    assert found is not None
    assert int(found[1].replace(",", "")) >= 5 * 2 * 10  # a token takes two steps of 10 ms


def test_a_streams_line_comes_at_its_end(logged: Served, lines: list[str]) -> None:
    messages = [{"role": "user", "content": SECRET}]
    body = {"messages": messages, "max_tokens": 20, "stream": True}
    with logged.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        events = answer.iter_lines()
        next(events)
        assert lines == []
        list(events)
    assert re.fullmatch(r"POST /v1/chat/completions 200 [\d,]+ ms, 9 \+ 20 tokens", written(lines)[-1])


def test_the_line_of_a_stream_that_ends_with_an_error_has_the_errors_status(logged: Served, lines: list[str]) -> None:
    for path, prompt in (("completions", [[97] * 8, [98, BREAKS]]), ("responses", "aab\0")):
        field = "input" if path == "responses" else "prompt"
        got = logged.post(path, stream=True, **{field: prompt})
        assert (got.status_code, "not finite" in got.text) == (200, True)
        assert f"/v1/{path} 500 " in written(lines)[-1]
        assert logged.metric(f'ringkv_requests_total{{endpoint="/v1/{path}",status="500"}}') == 1
        written(lines, 2)  # that of /metrics too
        lines.clear()


def test_the_line_of_a_client_that_disconnects_has_the_tokens_sent(logged: Served, lines: list[str]) -> None:
    with logged.http.stream(
        "POST", "/v1/completions", json={"prompt": SECRET, "max_tokens": 400, "stream": True}
    ) as it:
        next(it.iter_lines())
    found = re.fullmatch(r"POST /v1/completions 200 [\d,]+ ms, 9 \+ (\d+) tokens, cancelled", written(lines)[-1])
    assert found is not None
    assert 0 < int(found[1]) < 400


@pytest.mark.parametrize(
    ("method", "path", "line"),
    [
        ("GET", "/health", "GET /health 200 N ms"),
        ("GET", "/nope?secret=1", "GET /nope 404 N ms"),
        ("GET", "/a%0Ab%1b[31m", "GET /a%0Ab%1B%5B31m 404 N ms"),
        ("GET", f"/{'x' * 5000}", f"GET /{'x' * 99} 404 N ms"),
        ("POST", "/v1/completions", "POST /v1/completions 400 N ms"),
    ],
)
def test_a_line_without_generation_has_no_tokens_and_a_short_escaped_path(
    logged: Served, lines: list[str], method: str, path: str, line: str
) -> None:
    logged.http.request(method, path)
    assert [re.sub(r"[\d,]+ ms", "N ms", one) for one in written(lines)] == [line]


def test_no_text_of_a_prompt_or_an_answer_is_in_the_log(logged: Served, lines: list[str]) -> None:
    logged.post("completions", prompt=SECRET, max_tokens=9)
    logged.post("completions", prompt=SECRET, temperature=-1)
    logged.post("chat/completions", messages=[{"role": "user", "content": SECRET}], max_tokens=9, stop=SECRET)
    assert len(written(lines, 3)) == 3
    assert "secret" not in "".join(lines)


@pytest.fixture
def as_json(tokenizer: Tokenizer, lines: list[str]) -> Iterator[Served]:
    with serving(channel(), tokenizer, None, log=lines.append, telemetry=Telemetry(described_as_json)) as served:
        yield served


def test_a_client_that_disconnects_before_its_answer_begins_has_cancelled_too(logged: Served, lines: list[str]) -> None:
    with sent(logged, prompt=SECRET, max_tokens=400):
        wait_for_submission(logged)
    while not (posts := [one for one in lines if one.startswith("POST")]):
        logged.http.get("/health")
    assert re.fullmatch(r"POST /v1/completions 499 [\d,]+ ms, 9 \+ \d+ tokens, cancelled", posts[0])


def test_a_json_line_has_the_figures_of_the_answer_and_its_id(as_json: Served, lines: list[str]) -> None:
    answer = as_json.post("completions", prompt=SECRET, max_tokens=5)
    found = json.loads(written(lines)[0])
    assert found.pop("milliseconds") > 0
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "info",
        "event": "request",
        "request_id": answer.headers["x-request-id"],
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "model": NAMES[0],
        "prompt_tokens": 9,
        "completion_tokens": 5,
    }


def test_a_json_line_says_that_its_client_disconnected(lines: list[str], tokenizer: Tokenizer) -> None:
    slow = channel(seconds=0.01)
    with serving(slow, tokenizer, None, log=lines.append, telemetry=Telemetry(described_as_json)) as served:
        with served.http.stream(
            "POST", "/v1/completions", json={"prompt": "ab", "max_tokens": 400, "stream": True}
        ) as it:
            next(it.iter_lines())
        found = json.loads(written(lines)[0])
    assert (found["status"], found["cancelled"]) == (200, True)


def test_the_clients_id_reaches_the_engine_and_every_line(as_json: Served, lines: list[str]) -> None:
    as_json.http.post("/v1/completions", json={"prompt": "ab", "n": 2}, headers={"x-request-id": "mine/7"})
    assert json.loads(written(lines)[0])["request_id"] == "mine/7"
    assert [http_id(one.id) for one in as_json.engine.submitted] == ["mine/7"] * 2
    assert len({one.id for one in as_json.engine.submitted}) == 2


@pytest.mark.parametrize("sent", ["", "two words", "x" * 129, 'quote"', "\x1b[31m"])
def test_an_id_that_is_long_or_needs_escapes_is_replaced(as_json: Served, sent: str) -> None:
    got = as_json.http.get("/health", headers={"x-request-id": sent.encode()}).headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{32}", got)


def test_a_json_line_of_a_failure_is_an_error_without_text(as_json: Served, lines: list[str]) -> None:
    as_json.post("completions", prompt=f"{SECRET}\0", max_tokens=5)
    as_json.http.get("/a%0Ab")
    failed, missing = map(json.loads, written(lines, 2))
    assert (failed["level"], failed["status"]) == ("error", 500)
    assert (missing["level"], missing["path"]) == ("info", "/a%0Ab")
    assert "secret" not in "".join(lines)


def test_the_line_of_an_error_names_its_field_and_code(logged: Served, lines: list[str]) -> None:
    logged.post("completions", prompt="a", kv_budgt=3)
    assert re.fullmatch(r"POST /v1/completions 400 \d+ ms, kv_budgt, unsupported", written(lines)[-1])
