"""ringkv generate: one answer, streamed."""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from ringkv.cli.answering import cut_short, follow
from ringkv.cli.loading import load
from ringkv.cli.options import SWITCH, AsJson, EngineOptions, Sampling
from ringkv.cli.output import in_pieces, print_json, say
from ringkv.cli.prompts import ask, read_prompt
from ringkv.llm.show_progress import show_progress

if TYPE_CHECKING:
    from ringkv.llm.result import StreamPiece

INPUT = "Prompt"


def generate(
    question: Annotated[
        str | None,
        typer.Argument(metavar="QUESTION", help="The question; it comes after the document, if there is one."),
    ] = None,
    *,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", metavar="TEXT", help="The document itself; - reads stdin.", rich_help_panel=INPUT),
    ] = None,
    prompt_file: Annotated[
        str | None,
        typer.Option("--prompt-file", metavar="FILE", help="A UTF-8 text file; - is stdin.", rich_help_panel=INPUT),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option("--system", metavar="TEXT", help="System message of the chat.", rich_help_panel=INPUT),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", metavar=SWITCH, help="Complete the plain text, without the chat template.", rich_help_panel=INPUT
        ),
    ] = False,
    engine: EngineOptions,
    sampling: Sampling,
    as_json: AsJson = False,
) -> None:
    """Answer one question, about a document of any length if you give one.

    The text streams to stdout; progress, and a last line about the cache, go to stderr. The first run
    of a model, or with other --slots, --threads or --kv-window, compiles graphs, once: one to three minutes.

        ringkv generate "What is the capital of France?"
        ringkv generate --kv-budget 512 --prompt-file BIG.txt "What does it say about patents?"
        cat main.py | ringkv generate --model qwen2.5-coder-1.5b --raw --prompt -
    """
    asked, params = read_prompt(question, prompt, prompt_file), sampling.params()
    with show_progress() as tell:
        llm = load(engine, tell)
        pieces = ask(llm, asked, system, raw, params, lambda done, total: tell(done, total, "reading the prompt"))

        with closing(pieces), in_pieces() as write:

            def show(piece: "StreamPiece") -> None:
                tell.stop()
                if not as_json:
                    write(piece.text)

            answered = follow(pieces, show)
    if as_json:
        print_json({"model": engine.model, **answered.as_json()})
    else:
        say(answered.line())
    if why := cut_short(answered.result, params.max_tokens, llm.limits):
        say(why)
