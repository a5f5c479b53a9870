"""ringkv chat: a conversation in the terminal."""

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ringkv.base.errors import InvalidRequest, RequestFailed
from ringkv.base.events import Usage
from ringkv.base.interrupts import gently
from ringkv.cli.answering import cache_line, cut_short, live
from ringkv.cli.failures import complain, sentence
from ringkv.cli.loading import load
from ringkv.cli.options import Sampling, TalkOptions
from ringkv.cli.output import in_pieces, say
from ringkv.cli.prompts import system_message
from ringkv.llm.watching import watching

if TYPE_CHECKING:
    from ringkv.base.sampling import SamplingParams
    from ringkv.llm.llm import LLM
    from ringkv.llm.result import Piece, Result

HELP = """/help   this        /reset  forget the conversation        /quit   end (Ctrl-D does too)
Ctrl-C stops an answer. The bar shows the cache's entries: tokens held, of those it may hold."""
BAR = 16  # characters
PROMPT = "> "


def chat(
    *,
    engine: TalkOptions,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System message.")] = None,
    sampling: Sampling,
) -> None:
    """Talk with a model, and watch its cache fill up and then stay as it is.

    A turn reads what is new since the last one, and chooses anew what to keep of all that was said; with --kv-turns
    continue it goes on from what was kept before. /help, /reset and /quit are commands; Ctrl-C stops an answer, Ctrl-D
    ends. Questions that come through a pipe are written out between their answers.

        ringkv chat
        ringkv chat --kv-budget 256 --temperature 0.7
    """
    params = sampling.params()
    with watching() as tell:
        llm = load(engine, tell)
        llm.encode_chat([*system_message(system), {"role": "user", "content": "Hello"}])  # refuses a base model now
    say(f"{engine.model}, policy {llm.config.kv.policy}, a cache of {llm.limits.capacity:,} entries. {HELP}")
    talk = Conversation(llm, system)
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
            case command if command.startswith("/"):
                complain(f"there is no {command.split()[0]}; /help lists what there is")
            case text:
                talk.turn(text, params)


class Conversation:
    """The messages so far, and the model that answers them."""

    def __init__(self, llm: "LLM", system: str | None) -> None:
        self._llm, self._system = llm, system
        self.reset()

    def reset(self) -> None:
        self._messages: list[dict[str, Any]] = list(system_message(self._system))

    def turn(self, text: str, params: "SamplingParams") -> None:
        """Ask, and keep what was answered; a turn that fails leaves the conversation as it was."""
        messages = [*self._messages, {"role": "user", "content": text}]
        try:
            answer, last = self._answer(messages, params)
        except (InvalidRequest, RequestFailed) as error:
            complain(sentence(error))
            return
        if answer:
            self._messages = [*messages, {"role": "assistant", "content": answer}]
        if last is not None and last.usage is not None:
            say(filling(last.usage))
        if last is not None and last.result is not None:
            _say_if_cut(last.result, params.max_tokens, self._llm)

    def _answer(self, messages: list[dict[str, Any]], params: "SamplingParams") -> "tuple[str, Piece | None]":
        """The text, and its last piece; Ctrl-C ends it early."""
        said, last = "", None
        with gently() as stop, watching() as tell, in_pieces() as write:

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
                        if stop:
                            raise _Stopped
                except _Stopped:
                    write(" (stopped)")
        return said, last


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
            return None
        except KeyboardInterrupt:
            say("\n(Ctrl-D ends)")


def _piped_line() -> str | None:
    """Shown as if it had been typed, so that what is written is the whole conversation."""
    if not (line := sys.stdin.readline()):
        return None
    if line.strip():
        typer.echo(f"\n{PROMPT}{line.rstrip()}")
    return line
