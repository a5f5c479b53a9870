"""ringkv chat: a conversation in the terminal."""

import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ringkv.base.errors import InvalidRequest, RequestFailed
from ringkv.base.events import Usage
from ringkv.cli.answering import cache_line, cut_short, live
from ringkv.cli.failures import complain, sentence
from ringkv.cli.loading import load
from ringkv.cli.options import Sampling, TalkOptions
from ringkv.cli.output import in_pieces, say
from ringkv.cli.prompts import STDIN, read_file, system_message
from ringkv.llm.show_progress import show_progress
from ringkv.machine.interrupts import defer_interrupts

if TYPE_CHECKING:
    from ringkv.base.sampling import SamplingParams
    from ringkv.llm.llm import LLM
    from ringkv.llm.result import Result, StreamPiece

HELP = """/help   this        /file FILE   put a document before your next question
/reset  forget the conversation          /quit   exit (Ctrl-D does too)
Ctrl-C stops an answer. The bar shows the cache's entries: tokens held, of those it may hold."""
BAR = 16  # characters
PROMPT = "> "


def chat(
    *,
    engine: TalkOptions,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System message.")] = None,
    prompt_file: Annotated[
        str | None, typer.Option("--prompt-file", metavar="FILE", help="A UTF-8 text file to talk about.")
    ] = None,
    sampling: Sampling,
) -> None:
    """Talk with a model, and watch its cache fill up, then stay constant.

    Each turn processes the new text and selects again from the whole conversation; with --kv-turns continue it selects
    from what the last turn kept. /help, /file, /reset and /quit are commands; Ctrl-C stops an answer, Ctrl-D exits.
    Questions from a pipe are printed between their answers.

        ringkv chat
        ringkv chat --prompt-file BIG.txt
        ringkv chat --kv-budget 256 --temperature 0.7
    """
    params, document = sampling.params(), _document(prompt_file)
    with show_progress() as tell:
        llm = load(engine, tell)
        llm.encode_chat([*system_message(system), {"role": "user", "content": "Hello"}])  # refuses a base model now
    say(f"{engine.model}, policy {llm.config.kv.policy}, a cache of {llm.limits.capacity:,} entries.\n{HELP}")
    talk = Conversation(llm, system, document)
    while (line := _next_line()) is not None:
        match line.strip():
            case "":
                continue
            case "/quit" | "/exit":
                break
            case "/help":
                say(HELP)
            case "/reset":
                talk.reset()
                say("forgotten")
            case command if command.split()[0] == "/file":
                talk.take(command.removeprefix("/file").strip())
            case command if command.startswith("/"):
                complain(f"there is no {command.split()[0]}; /help lists what there is")
            case text:
                talk.turn(text, params)


class Conversation:
    """The messages so far, and the model that answers them."""

    def __init__(self, llm: "LLM", system: str | None, document: str | None = None) -> None:
        self._llm, self._system, self._first = llm, system, document
        self.reset()

    def reset(self) -> None:
        self._messages: list[dict[str, Any]] = list(system_message(self._system))
        self._document = self._first  # that the next question is about

    def take(self, path: str) -> None:
        """Put a file before the next question."""
        try:
            self._document = _document(path)
        except InvalidRequest as error:
            complain(sentence(error))
        else:
            say(f"{path} comes before your next question")

    def turn(self, text: str, params: "SamplingParams") -> None:
        """Ask, and keep what was answered; a turn that fails leaves the conversation as it was."""
        content = text if self._document is None else f"{self._document}\n\n{text}"
        messages = [*self._messages, {"role": "user", "content": content}]
        try:
            answer, last, rate = self._answer(messages, params)
        except (InvalidRequest, RequestFailed) as error:
            complain(sentence(error))
            return
        if answer:
            self._messages = [*messages, {"role": "assistant", "content": answer}]
            self._document = None
        if last is not None and last.usage is not None:
            say(filling(last.usage) + (f" | {rate:.1f} tok/s" if rate else ""))
        if last is not None and last.result is not None:
            _say_if_cut(last.result, params.max_tokens, self._llm)

    def _answer(
        self, messages: list[dict[str, Any]], params: "SamplingParams"
    ) -> "tuple[str, StreamPiece | None, float | None]":
        """The text, its last piece, and the tokens a second after the first; Ctrl-C ends it early."""
        said, last, times = "", None, list[float]()
        with defer_interrupts() as stop, show_progress() as tell, in_pieces() as write:

            def read(done: int, total: int) -> None:
                tell(done, total, "reading the conversation")
                if stop:
                    raise _Stopped

            pieces = self._llm.stream_chat(messages, params, on_prefill=read)
            with closing(pieces):
                try:
                    for piece in pieces:
                        tell.stop()
                        write(piece.text)
                        said, last = said + piece.text, piece
                        times += [] if piece.token is None else [time.perf_counter()]
                        if stop:
                            raise _Stopped
                except _Stopped:
                    write(" (stopped)")
        return said, last, (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else None


def _document(path: str | None) -> str | None:
    """Raises InvalidRequest if it is no text file; standard input has the questions."""
    if path is None:
        return None
    if path in ("", STDIN):
        raise InvalidRequest("a chat takes its questions from standard input and a document from a file; name one")
    return read_file(path)


class _Stopped(Exception):
    """The user wants to hear no more."""


def _say_if_cut(result: "Result", asked: int, llm: "LLM") -> None:
    if why := cut_short(result, asked, llm.limits):
        say(why)


def filling(usage: Usage) -> str:
    """The cache as a bar, and what was kept and evicted."""
    held, capacity = live(usage), usage.kv.capacity
    full = round(BAR * held / capacity)
    return f"[{'█' * full}{'░' * (BAR - full)}] {held:,} of {capacity:,} | {cache_line(usage)}"


def _next_line() -> str | None:
    """None at the end of input. Ctrl-C only drops the line that was begun."""
    if not sys.stdin.isatty():
        return _piped_line()
    import readline  # noqa: F401  # input() edits and remembers lines once this is loaded

    while True:
        try:
            return input(f"\n{PROMPT}")
        except EOFError:
            typer.echo()  # the shell's own prompt comes next
            return None
        except KeyboardInterrupt:
            say("\n(Ctrl-D exits)")


def _piped_line() -> str | None:
    """Shown as if it had been typed, so that what is written is the whole conversation."""
    if not (line := sys.stdin.readline()):
        return None
    if line.strip():
        typer.echo(f"\n{PROMPT}{line.rstrip()}")
    return line
