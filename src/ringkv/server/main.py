"""run: serves HTTP in this process with the engine in another one, until a signal ends both."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Sequence

import uvicorn

from ringkv.base.config import EngineConfig
from ringkv.base.errors import InvalidRequest, RingKVError
from ringkv.base.progress import Progress
from ringkv.server.admission import DEFAULT_LOAD, LoadOptions
from ringkv.server.app import make_app
from ringkv.server.request_log import Log
from ringkv.server.welcome import welcome
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.tokenizer import Tokenizer
from ringkv.worker.client import EngineClient
from ringkv.worker.process import BUILDER

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 5  # seconds that running answers get to finish after a signal
FLUSH = 5  # seconds more to send the rest of aborted answers
BACKLOG = 2048


def run(
    config: EngineConfig,
    names: Sequence[str],
    host: str = "127.0.0.1",
    port: int = 8000,
    on_progress: Progress | None = None,
    on_status: Callable[[str], None] = print,
    builder: str = BUILDER,
    origins: Sequence[str] = (),
    log: Log | None = None,
    load: LoadOptions = DEFAULT_LOAD,
) -> None:
    """Serve until SIGINT or SIGTERM. Port 0 takes a free one.

    on_status: receives the text for the user when the server is ready, stops and has stopped.
    origins: sites whose pages may send requests from a browser, "*" for all. log: receives one line per request.
    load: the bounds of queue and time.

    Raises the engine's startup errors, RingKVError if the port is taken, and KeyboardInterrupt if a signal arrives
    before the server is ready.
    """
    with _bind(host, port) as listener:
        try:
            asyncio.run(_serve(config, names, listener, on_progress, on_status, builder, origins, log, load))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        on_status("stopped")


async def _serve(
    config: EngineConfig,
    names: Sequence[str],
    listener: socket.socket,
    on_progress: Progress | None,
    on_status: Callable[[str], None],
    builder: str,
    origins: Sequence[str],
    log: Log | None,
    load: LoadOptions,
) -> None:
    tokenizer, template = Tokenizer.from_directory(config.model_dir), _template(config)
    startup = asyncio.current_task()
    assert startup is not None
    _on_signals(startup.cancel)
    engine = await EngineClient.start(config, on_progress, builder)
    try:
        app = make_app(engine, tokenizer, template, names, origins, log, load)
        text = welcome(engine, names[0], listener.getsockname(), chats=template is not None)
        server = _Server(_settings(app), text, on_status, engine.cancel_all)
        _on_signals(server.stop)
        await server.serve([listener])
    finally:
        await engine.close()


def _template(config: EngineConfig) -> ChatTemplate | None:
    try:
        return ChatTemplate.from_directory(config.model_dir)
    except InvalidRequest:  # a base model has none; chat requests get a 400
        return None


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


def _settings(app: Callable[..., object]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        backlog=BACKLOG,
        timeout_graceful_shutdown=GRACE + FLUSH,
        server_header=False,
    )


def _on_signals(act: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, act)


class _Server(uvicorn.Server):
    """Leaves signals to our handlers, which are installed before the engine starts, and does not re-raise them."""

    def __init__(
        self, config: uvicorn.Config, ready: str, on_status: Callable[[str], None], abort: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._ready, self._on_status, self._abort = ready, on_status, abort

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_status(self._ready)

    def stop(self) -> None:
        """Give running answers `GRACE` seconds, then abort them. The second call aborts them at once."""
        running = len(self.server_state.tasks)
        if running and not self.should_exit:
            self._on_status(f"stopping; answers running: {running}, {GRACE} s to finish; Ctrl-C again aborts them")
        asyncio.get_running_loop().call_later(0 if self.should_exit else GRACE, self._abort)
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
