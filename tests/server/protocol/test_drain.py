"""A server that is stopping: what it finishes, and what it refuses."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ringkv.base.errors import Draining
from ringkv.server.protocol.drain import Drain
from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import Served, serving
from tests.server.echo import channel


@pytest.fixture
def drain() -> Drain:
    return Drain()


@pytest.fixture
def stopping(tokenizer: Tokenizer, drain: Drain) -> Iterator[Served]:
    """A server that takes 10 ms per step, and its drain."""
    with serving(channel(seconds=0.01), tokenizer, None, drain=drain) as served:
        yield served


def test_new_work_is_refused_and_probes_are_answered(stopping: Served, drain: Drain) -> None:
    assert stopping.http.get("/ready").status_code == 200
    drain.begin(30)
    for path, body in (("completions", {"prompt": "a"}), ("chat/completions", {"messages": []}), ("responses", {})):
        got = stopping.post(path, **body)
        assert (got.status_code, got.json()["error"]["code"]) == (503, "draining")
        assert 28 <= int(got.headers["retry-after"]) <= 30
    assert stopping.http.post("/tokenize", json={"prompt": "a"}).status_code == 503
    assert stopping.http.get("/ready").json()["error"]["code"] == "draining"
    assert stopping.http.get("/health").status_code == 200
    assert stopping.http.get("/v1/models").status_code == 200
    assert stopping.engine.submitted == []
    assert stopping.metric('ringkv_requests_total{endpoint="/v1/completions",status="503"}') == 1


@pytest.mark.parametrize("stream", [False, True])
def test_accepted_work_is_finished(stopping: Served, drain: Drain, stream: bool) -> None:
    bodies = [{"prompt": chr(97 + n) * 9, "max_tokens": 20, "stream": stream} for n in range(9)]  # four decode at once
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = [pool.submit(stopping.post, "completions", **body) for body in bodies]
        while len(stopping.engine.submitted) < len(bodies):
            stopping.http.get("/health")
        assert drain.running == len(bodies)
        drain.begin(30)
        assert stopping.post("completions", prompt="late").status_code == 503
        texts = [answer.result().text for answer in answers]
    for body, text in zip(bodies, texts, strict=True):
        events = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
        chunks = events if stream else [json.loads(text)]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == body["prompt"][0] * 20
    asyncio.run(asyncio.wait_for(drain.finished(), 1))


def test_it_is_finished_when_the_last_work_is() -> None:
    async def main() -> None:
        drain = Drain()
        with drain.work():
            with drain.work():
                drain.begin(30)
                waiting = asyncio.create_task(drain.finished())
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)
            assert not waiting.done()
        await asyncio.wait_for(waiting, 1)
        with pytest.raises(Draining), drain.work():
            pytest.fail("it took work")
        assert drain.running == 0

    asyncio.run(main())


def test_it_is_finished_at_its_deadline() -> None:
    async def main() -> None:
        drain = Drain()
        with drain.work():
            drain.begin(0.05)
            await asyncio.wait_for(drain.finished(), 1)
            assert drain.running == 1

    asyncio.run(main())


def test_without_work_it_is_finished_at_once() -> None:
    async def main() -> None:
        drain = Drain()
        drain.begin(30)
        await asyncio.wait_for(drain.finished(), 1)

    asyncio.run(main())
