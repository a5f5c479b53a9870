"""run: serves HTTP in this process with each model's engine in one of its own, until a signal ends them all.

An engine that ends is started again. A first signal drains: no new work is taken, and what was accepted has
`drain_seconds` to finish. A second signal aborts it.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import uvicorn

from ringkv.base.config import EngineConfig
from ringkv.base.errors import RingKVError
from ringkv.base.progress import Progress
from ringkv.machine.interrupts import TERMINATED
from ringkv.server.app import make_app
from ringkv.server.options import DEFAULT_EDGE, DEFAULT_LOAD, EdgeOptions, LoadOptions
from ringkv.server.protocol.connections import bounded_protocol
from ringkv.server.protocol.drain import Drain
from ringkv.server.run.serving import LoadedModel, check_names
from ringkv.server.watch.log import Log
from ringkv.server.watch.tracing import TEXT_ONLY, Telemetry
from ringkv.server.welcome import welcome
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.generation_config import sampling_of
from ringkv.text.tokenizer import Tokenizer
from ringkv.worker.client import GRACE, EngineClient
from ringkv.worker.process import BUILDER, STOPPING
from ringkv.worker.supervisor import RestartPolicy, Supervisor

DRAIN_SECONDS = 30.0
FLUSH = 5  # seconds to send the rest of aborted answers
FLUSH_AT_ONCE = 1  # the same after a second signal
AGAIN = 0.1  # seconds between two aborts, for work that reaches the engine only after the deadline
BACKLOG = 2048
_INTERRUPTIONS = {signal.SIGINT: KeyboardInterrupt(), signal.SIGTERM: SystemExit(TERMINATED)}


@dataclass(frozen=True)
class WantedModel:
    """A model to serve. names: the first is its own, the others are aliases."""

    config: EngineConfig
    names: tuple[str, ...]


@dataclass(frozen=True)
class RunOptions:
    """How models are served.

    origins: sites whose pages may send requests from a browser, "*" for all. log: receives one line per request.
    drain_seconds: how long accepted requests may run on after a signal. load: the bounds of each queue, and of time.
    restart: when an engine that has ended is started again. edge: who may send requests, how many and how large.
    telemetry: how requests are logged and traced. builder: what makes an engine in its process.
    """

    origins: Sequence[str] = ()
    log: Log | None = None
    drain_seconds: float = DRAIN_SECONDS
    load: LoadOptions = DEFAULT_LOAD
    restart: RestartPolicy = RestartPolicy()  # noqa: RUF009 - frozen
    edge: EdgeOptions = DEFAULT_EDGE
    telemetry: Telemetry = TEXT_ONLY
    builder: str = BUILDER


DEFAULTS = RunOptions()


def run(
    models: Sequence[WantedModel],
    host: str = "127.0.0.1",
    port: int = 8000,
    on_progress: Progress | None = None,
    on_status: Callable[[str], None] = print,
    options: RunOptions = DEFAULTS,
) -> None:
    """Serve models, each with an engine process of its own, until SIGINT or SIGTERM. Port 0 takes a free port.

    on_status: receives the text for the user when the server is ready, stops and has stopped.

    Raises InvalidRequest if two models have the same name. Raises an engine's startup errors, and the last of them if
    an engine cannot be started again. Raises RingKVError if the port is taken. If a signal arrives before the server
    is ready, raises KeyboardInterrupt for SIGINT and SystemExit with status 143 for SIGTERM. Raises EngineDied if a
    signal arrives while an engine is missing.
    """
    check_names([model.names for model in models])
    with _bind(host, port) as listener:
        try:
            asyncio.run(_serve(models, listener, on_progress, on_status, options))
        except asyncio.CancelledError as error:
            raise _INTERRUPTIONS[error.args[0]] from None
        on_status("stopped")


async def _serve(
    models: Sequence[WantedModel],
    listener: socket.socket,
    on_progress: Progress | None,
    on_status: Callable[[str], None],
    options: RunOptions,
) -> None:
    folders = [model.config.model_dir for model in models]
    texts = [(Tokenizer.from_directory(folder), ChatTemplate.find(folder), sampling_of(folder)) for folder in folders]
    startup = asyncio.current_task()
    assert startup is not None
    _on_signals(startup.cancel)
    engines, loaded, drain, grace = list[Supervisor](), list[LoadedModel](), Drain(), GRACE
    try:
        # One after the other: a start needs all cores, and memory that it frees when it is done.
        for model, (tokenizer, template, sampling) in zip(models, texts, strict=True):
            start = partial(EngineClient.start, model.config, builder=options.builder)
            client = await start(on_progress=on_progress)
            engines.append(Supervisor(client, start, options.restart, f"the engine of {model.names[0]}"))
            loaded.append(LoadedModel(engines[-1], tokenizer, template, model.names, model.config.kv_why, sampling))
        longest = max(engine.limits.longest_prompt for engine in engines)
        edge, address = options.edge, listener.getsockname()
        access = edge.access(str(address[0]), longest)
        app = make_app(loaded, options.origins, options.log, options.load, drain, access, options.telemetry)
        text = welcome(loaded, address, scheme="https" if edge.tls else "http", with_key=bool(edge.keys))
        server = _Server(_settings(app, edge), text, on_status, drain, options.drain_seconds, engines)
        _on_signals(server.stop)
        serving = asyncio.create_task(server.serve([listener]))
        lost = [asyncio.create_task(engine.given_up()) for engine in engines]
        await asyncio.wait((serving, *lost), return_when=asyncio.FIRST_COMPLETED)
        if any(task.done() for task in lost):
            server.end()
        for task in lost:
            task.cancel()
        await serving
        grace = server.grace
        for engine in engines:
            if engine.failure:
                raise engine.failure
    finally:
        await asyncio.gather(*(engine.close(grace) for engine in engines))


def _bind(host: str, port: int) -> socket.socket:
    """Bind the port before the engine's slow start. It does not listen yet, so no client can connect."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise RingKVError(f"cannot listen on {host} port {port} ({error}); choose another host or port") from error
    return listener


def _settings(app: Callable[..., object], edge: EdgeOptions) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_level="warning",
        log_config=None,  # its records go where ours go
        access_log=False,
        lifespan="on",
        backlog=BACKLOG,
        timeout_graceful_shutdown=FLUSH,
        server_header=False,
        http=bounded_protocol(edge.connections()),
        ws="none",
        **edge.tls,
    )


def _on_signals(act: Callable[[signal.Signals], object]) -> None:
    loop = asyncio.get_running_loop()
    for number in STOPPING:
        loop.add_signal_handler(number, act, number)


class _Server(uvicorn.Server):
    """Leaves signals to our handlers, which are installed before the engine starts, and does not re-raise them."""

    def __init__(
        self,
        config: uvicorn.Config,
        ready: str,
        on_status: Callable[[str], None],
        drain: Drain,
        drain_seconds: float,
        engines: Sequence[Supervisor],
    ) -> None:
        super().__init__(config)
        self._ready, self._on_status, self._engines = ready, on_status, engines
        self._drain, self._drain_seconds = drain, drain_seconds
        self._draining: asyncio.Task[None] | None = None
        self.grace = GRACE  # seconds that the engine has to end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_status(self._ready)

    def stop(self, _: signal.Signals) -> None:
        """Drain, then end. The second call aborts running answers and ends at once."""
        if self._drain.has_begun:
            self.config.timeout_graceful_shutdown, self.grace = FLUSH_AT_ONCE, 0.0
            self.end()
            return
        self._drain.begin(self._drain_seconds)
        if running := self._drain.running:
            seconds = f"{self._drain_seconds:g} s to finish"
            self._on_status(f"stopping; answers running: {running}, {seconds}; Ctrl-C again aborts them")
        self._draining = asyncio.create_task(self._finish())

    def end(self) -> None:
        """Abort running answers and end."""
        self._drain.begin(0)
        self._draining = asyncio.create_task(self._finish())

    async def _finish(self) -> None:
        await self._drain.finished()
        self.should_exit = True
        while self._drain.running:
            for engine in self._engines:
                engine.cancel_all()
            await asyncio.sleep(AGAIN)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
