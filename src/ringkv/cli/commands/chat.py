"""ringkv chat: a conversation in the terminal."""

import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ringkv.base.errors import InvalidRequest, RequestFailed
from ringkv.base.events import Usage
from ringkv.cli.answering import cache_line, cut_short, live
from ringkv.cli.failures import print_error, sentence
from ringkv.cli.options import ANSWERING_MODEL, ConversationOptions, ModelName, Sampling, unpanelled
from ringkv.cli.output import FREE, USED, in_pieces, print_stderr
from ringkv.cli.prompts import STDIN, read_file, system_message
from ringkv.llm.show_progress import show_progress
from ringkv.machine.interrupts import defer_interrupts
from ringkv.plan.options import AUTO

if TYPE_CHECKING:
    from ringkv.base.sampling import SamplingParams
    from ringkv.llm.llm import LLM
    from ringkv.llm.result import StreamPiece

HELP = """/help   this        /file FILE   put a document before the next question
/reset  start a new conversation         /quit   exit (Ctrl-D also exits)
Ctrl-C stops an answer. The bar shows how many of the cache's entries are used."""
BAR = 16  # characters
PROMPT = "> "


def chat(
    *,
    model: ModelName = ANSWERING_MODEL,
    engine: ConversationOptions,
    system: Annotated[str | None, unpanelled("--system", "TEXT", "System message.")] = None,
    prompt_file: Annotated[
        str | None, unpanelled("--prompt-file", "FILE", "A UTF-8 text file, put before the first question.")
    ] = None,
    sampling: Sampling,
) -> None:
    """Chat with a model; a bar shows its cache fill up and then stay constant.

    Each turn prefills the new text and selects again from the whole conversation; with --kv-turns continue it selects
    from the tokens that the last turn kept. /help, /file, /reset and /quit are commands; Ctrl-C stops an answer, Ctrl-D
    exits. Questions from a pipe are echoed before their answers.

        ringkv chat
        ringkv chat --prompt-file BIG.txt
        ringkv chat --kv-budget 256 --temperature 0.7
    """
    from ringkv.llm.llm import LLM

    document = _document(prompt_file)
    with show_progress() as progress:
        llm = LLM(model, on_progress=progress, **vars(engine.compiling_behind.filled(prefix_store=AUTO)))
        llm.encode_chat([*system_message(system), {"role": "user", "content": "Hello"}])  # refuses a base model at once
    print_stderr(f"{model}, policy {llm.config.kv.policy}, cache of {llm.limits.capacity:,} entries.\n{HELP}")
    session = ChatSession(llm, system, document)
    while (line := _next_line()) is not None:
        match line.strip():
            case "":
                continue
            case "/quit" | "/exit":
                break
            case "/help":
                print_stderr(HELP)
            case "/reset":
                session.reset()
                print_stderr("new conversation")
            case command if command.split()[0] == "/file":
                session.attach(command.removeprefix("/file").strip())
            case command if command.startswith("/"):
                print_error(f"unknown command {command.split()[0]}; /help lists the commands")
            case text:
                session.turn(text, sampling)


class ChatSession:
    """The messages so far and the model that answers them."""

    def __init__(self, llm: "LLM", system: str | None, document: str | None = None) -> None:
        self._llm, self._system, self._first = llm, system, document
        self.reset()

    def reset(self) -> None:
        self._messages: list[dict[str, Any]] = list(system_message(self._system))
        self._document = self._first  # put before the next question

    def attach(self, path: str) -> None:
        """Put a document before the next question."""
        try:
            self._document = _document(path)
        except InvalidRequest as error:
            print_error(sentence(error))
        else:
            print_stderr(f"{path} is put before the next question")

    def turn(self, text: str, params: "SamplingParams") -> None:
        """Answer a question and append both messages; a turn that fails does not change the conversation."""
        content = text if self._document is None else f"{self._document}\n\n{text}"
        messages = [*self._messages, {"role": "user", "content": content}]
        try:
            answer, last, rate = self._answer(messages, params)
        except (InvalidRequest, RequestFailed) as error:
            print_error(sentence(error))
            return
        if answer:
            self._messages = [*messages, {"role": "assistant", "content": answer}]
            self._document = None
        if last is not None and last.usage is not None:
            use = filling(last.usage).append(f" | {rate:.1f} tok/s" if rate else "")
            Console(stderr=True).print(use, soft_wrap=True)
        result = last and last.result
        if result and (why := cut_short(result, params.max_tokens, self._llm.limits)):
            print_stderr(why)

    def _answer(
        self, messages: list[dict[str, Any]], params: "SamplingParams"
    ) -> "tuple[str, StreamPiece | None, float | None]":
        """Return the text, its last piece and the decode rate in tokens per second; Ctrl-C stops early."""
        answer, last, times = "", None, list[float]()
        with defer_interrupts() as stop, show_progress() as progress, in_pieces() as write:

            def on_prefill(done: int, total: int) -> None:
                progress(done, total, "prefilling the conversation")
                if stop:
                    raise _Stopped

            pieces = self._llm.stream_chat(messages, params, on_prefill=on_prefill)
            with closing(pieces):
                try:
                    for piece in pieces:
                        progress.stop()
                        write(piece.text)
                        answer, last = answer + piece.text, piece
                        times += [] if piece.token is None else [time.perf_counter()]
                        if stop:
                            raise _Stopped
                except _Stopped:
                    write(" (stopped)")
        return answer, last, (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else None


def _document(path: str | None) -> str | None:
    """Read a document. Raises InvalidRequest if it is not a text file, or standard input, which has the questions."""
    if path is None:
        return None
    if path in ("", STDIN):
        raise InvalidRequest("chat reads questions from standard input and documents from files; give a file name")
    return read_file(path)


class _Stopped(Exception):
    """The user pressed Ctrl-C."""


def filling(usage: Usage) -> Text:
    """Return the cache's use as a bar in the colours of what is kept and of what is free, with its usage counters."""
    used, capacity = live(usage), usage.kv.capacity
    full = round(BAR * used / capacity)
    text = Text(f"[{'█' * full}{'░' * (BAR - full)}] {used:,} of {capacity:,} entries | {cache_line(usage)}")
    text.stylize(USED, 1, 1 + full)
    text.stylize(FREE, 1 + full, 1 + BAR)
    return text


def _next_line() -> str | None:
    """Return the next line, or None at the end of input. Ctrl-C discards the current line."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        if line.strip():  # stdout has the whole conversation
            typer.echo(f"\n{PROMPT}{line.rstrip()}")
        return line or None
    import readline  # noqa: F401  # gives input() line editing and history

    while True:
        try:
            return input(f"\n{PROMPT}")
        except EOFError:
            typer.echo()  # the shell's prompt starts on a new line
            return None
        except KeyboardInterrupt:
            print_stderr("\n(Ctrl-D exits)")
