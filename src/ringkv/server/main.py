"""serve: an engine in its own process and HTTP in this one, until a signal ends both."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Sequence

import uvicorn

from ringkv.base.config import EngineConfig
from ringkv.base.errors import InvalidRequest, RingKVError
from ringkv.base.progress import Progress
from ringkv.server.app import make_app
from ringkv.server.request_log import Log
from ringkv.server.welcome import welcome
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.tokenizer import Tokenizer
from ringkv.worker.client import EngineClient
from ringkv.worker.process import BUILDER

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 5  # seconds that running answers get to end after a signal
LAST_WORDS = 5  # seconds more, to send those ends
BACKLOG = 2048


def run(
    config: EngineConfig,
    names: Sequence[str],
    host: str = "127.0.0.1",
    port: int = 8000,
    on_progress: Progress | None = None,
    say: Callable[[str], None] = print,
    builder: str = BUILDER,
    origins: Sequence[str] = (),
    log: Log | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; port 0 takes a free one.

    `say` gets what the user should know once it is ready, and when it has ended.
    `origins`: whose pages may ask from a browser, "*" for all. `log`: gets a line for each request.

    Raises what starting the engine raises, `RingKVError` when the port is taken, and KeyboardInterrupt when a signal
    comes before it is ready.
    """
    with _bind(host, port) as listener:
        try:
            asyncio.run(_serve(config, names, listener, on_progress, say, builder, origins, log))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        say("stopped")


async def _serve(
    config: EngineConfig,
    names: Sequence[str],
    listener: socket.socket,
    on_progress: Progress | None,
    say: Callable[[str], None],
    builder: str,
    origins: Sequence[str],
    log: Log | None,
) -> None:
    tokenizer, template = Tokenizer.from_directory(config.model_dir), _template(config)
    starting = asyncio.current_task()
    assert starting is not None
    _on_signals(starting.cancel)
    engine = await EngineClient.start(config, on_progress, builder)
    try:
        app = make_app(engine, tokenizer, template, names, origins, log)
        text = welcome(engine, names[0], listener.getsockname(), chats=template is not None)
        server = _Server(_settings(app), text, say, engine.cancel_all)
        _on_signals(server.stop)
        await server.serve([listener])
    finally:
        await engine.close()


def _template(config: EngineConfig) -> ChatTemplate | None:
    try:
        return ChatTemplate.from_directory(config.model_dir)
    except InvalidRequest:  # a base model has none; chat requests are told so
        return None


def _bind(host: str, port: int) -> socket.socket:
    """Take the port before the long start of an engine; nobody can connect until it listens."""
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
        timeout_graceful_shutdown=GRACE + LAST_WORDS,
        server_header=False,
    )


def _on_signals(act: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, act)


class _Server(uvicorn.Server):
    """Signals are handled by us from before the engine starts, and are not raised again at the end."""

    def __init__(
        self, config: uvicorn.Config, ready: str, say: Callable[[str], None], end_answers: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._ready, self._say, self._end_answers = ready, say, end_answers

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._say(self._ready)

    def stop(self) -> None:
        """Running answers get `GRACE` seconds, then end with what they have; at once the second time."""
        running = len(self.server_state.tasks)
        if running and not self.should_exit:
            self._say(f"stopping; answers running: {running}, with {GRACE} seconds to end; Ctrl-C again ends them now")
        asyncio.get_running_loop().call_later(0 if self.should_exit else GRACE, self._end_answers)
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
