"""Fixtures: a byte-level tokenizer, an engine that echoes its prompt, and a server with them on a real socket."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from ringkv.server.app import make_app
from ringkv.server.options import DEFAULT_LOAD, LoadOptions
from ringkv.server.protocol.connections import ConnectionLimits, bounded_protocol
from ringkv.server.protocol.drain import Drain
from ringkv.server.protocol.guard import OPEN_ACCESS, Access
from ringkv.server.run.serving import LoadedModel
from ringkv.server.watch.tracing import TEXT_ONLY, Telemetry
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.tokenizer import Tokenizer
from tests import byte_tokenizer
from tests.server.echo import InProcess, channel

NAMES = ("echo", "org/echo-base")
CONNECTIONS = ConnectionLimits()
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_tokenizer.save(tmp_path_factory.mktemp("echo"), TEMPLATE)


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.from_directory(model_dir)


class Served:
    """A running server with its engine, its address and its clients."""

    def __init__(self, engine: InProcess, port: int) -> None:
        self.engine = engine
        self.port = port
        self.root = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.root, timeout=30)
        self.client = openai.OpenAI(base_url=f"{self.root}/v1", api_key="none", max_retries=0, timeout=30)

    def post(self, path: str, **body: Any) -> httpx.Response:
        sent = json.dumps(body)  # httpx cannot encode half of a surrogate pair; json escapes it
        return self.http.post(f"/v1/{path}", content=sent, headers={"content-type": "application/json"})

    def events(self, path: str, **body: Any) -> list[str]:
        """Return the data of each event of a streamed answer."""
        parts = self.post(path, stream=True, **body).text.split("\n\n")
        assert parts.pop() == ""
        assert all(part.startswith("data: ") for part in parts)
        return [part.removeprefix("data: ") for part in parts]

    def chunks(self, path: str, **body: Any) -> list[dict[str, Any]]:
        *events, done = self.events(path, **body)
        assert done == "[DONE]"
        return [json.loads(event) for event in events]

    def metric(self, line: str) -> float:
        """Return the value of one sample, named with its labels as Prometheus writes them; `model` is left out."""
        (found,) = self.metrics(line)
        return found

    def metrics(self, *lines: str) -> list[float]:
        """Return the values of samples at one time."""
        text = self.http.get("/metrics").text
        for own in (f'{{model="{NAMES[0]}"}}', f',model="{NAMES[0]}"'):
            text = text.replace(own, "")
        samples = dict(sample.rsplit(" ", 1) for sample in text.splitlines())
        return [float(samples[line]) for line in lines]

    def wait_until_free(self) -> None:
        """Wait until the engine is idle; fail after ten seconds."""
        deadline = time.monotonic() + 10
        while self.engine.stats() != self.idle:
            assert time.monotonic() < deadline, self.engine.stats()
            time.sleep(0.01)

    @property
    def idle(self) -> Any:
        return type(self.engine.stats())(0, 0, 0, self.engine.limits.slots)


@contextmanager
def serving(
    engine: InProcess,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    origins: Sequence[str] = (),
    log: Callable[[str], None] | None = None,
    load: LoadOptions = DEFAULT_LOAD,
    drain: Drain | None = None,
    access: Access = OPEN_ACCESS,
    connections: ConnectionLimits = CONNECTIONS,
    telemetry: Telemetry = TEXT_ONLY,
    others: Sequence[LoadedModel] = (),
) -> Iterator[Served]:
    app = make_app(
        [LoadedModel(engine, tokenizer, template, NAMES), *others], origins, log, load, drain, access, telemetry
    )
    http = bounded_protocol(connections)
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_level="warning", http=http, ws="none"))
    listener = server.config.bind_socket()
    thread = threading.Thread(target=asyncio.run, args=(server.serve([listener]),))
    thread.start()
    served = Served(engine, listener.getsockname()[1])
    try:
        while not server.started:
            time.sleep(0.005)
        yield served
    finally:
        served.http.close()
        served.client.close()
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def served(tokenizer: Tokenizer, model_dir: Path) -> Iterator[Served]:
    """A server that answers at once."""
    with serving(channel(), tokenizer, ChatTemplate.from_directory(model_dir)) as served:
        yield served


@pytest.fixture
def fresh(tokenizer: Tokenizer, model_dir: Path) -> Iterator[Served]:
    """A server that answers at once and has had no requests."""
    with serving(channel(), tokenizer, ChatTemplate.from_directory(model_dir)) as served:
        yield served


@pytest.fixture
def slow(tokenizer: Tokenizer, model_dir: Path) -> Iterator[Served]:
    """A server that takes 10 ms per step, so that a client can disconnect in the middle."""
    with serving(channel(seconds=0.01), tokenizer, ChatTemplate.from_directory(model_dir)) as served:
        yield served


@pytest.fixture
def base_model(tokenizer: Tokenizer) -> Iterator[Served]:
    """A server of a model without a chat template."""
    with serving(channel(), tokenizer, None) as served:
        yield served
