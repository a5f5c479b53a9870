"""ringkv generate: one answer, streamed."""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from ringkv.cli.answering import cut_short, follow
from ringkv.cli.loading import load
from ringkv.cli.options import SWITCH, AsJson, EngineOptions, Sampling
from ringkv.cli.output import in_pieces, print_json, print_stderr
from ringkv.cli.prompts import read_prompt, stream_answer
from ringkv.llm.show_progress import show_progress

if TYPE_CHECKING:
    from ringkv.llm.result import StreamPiece

INPUT = "Prompt"


def generate(
    question: Annotated[
        str | None,
        typer.Argument(metavar="QUESTION", help="The question, put after the document if there is one."),
    ] = None,
    *,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", metavar="TEXT", help="The document; - reads stdin.", rich_help_panel=INPUT),
    ] = None,
    prompt_file: Annotated[
        str | None,
        typer.Option(
            "--prompt-file",
            metavar="FILE",
            help="A UTF-8 text file with the document; - reads stdin.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option("--system", metavar="TEXT", help="System message.", rich_help_panel=INPUT),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", metavar=SWITCH, help="Complete the prompt without the chat template.", rich_help_panel=INPUT
        ),
    ] = False,
    engine: EngineOptions,
    sampling: Sampling,
    as_json: AsJson = False,
) -> None:
    """Answer one question, optionally about a long document.

    The answer streams to stdout; progress and a line about the cache go to stderr. The first run of a model compiles
    its graphs, which takes one to three minutes; so does the first run with other --slots, --threads or --kv-window.

        ringkv generate "What is the capital of France?"
        ringkv generate --kv-budget 512 --prompt-file BIG.txt "What does it say about patents?"
        cat main.py | ringkv generate --model qwen2.5-coder-1.5b --raw --prompt -
    """
    text, params = read_prompt(question, prompt, prompt_file), sampling.params()
    with show_progress() as progress:
        llm = load(engine, progress)
        pieces = stream_answer(
            llm, text, system, raw, params, lambda done, total: progress(done, total, "prefilling the prompt")
        )

        with closing(pieces), in_pieces() as write:

            def show(piece: "StreamPiece") -> None:
                progress.stop()
                if not as_json:
                    write(piece.text)

            timed = follow(pieces, show)
    if as_json:
        print_json({"model": engine.model, **timed.as_json()})
    else:
        print_stderr(timed.line())
    if why := cut_short(timed.result, params.max_tokens, llm.limits):
        print_stderr(why)
