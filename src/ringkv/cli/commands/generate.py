"""ringkv generate: one answer, streamed."""

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ringkv.base.errors import InvalidRequest
from ringkv.cli.answering import cut_short, follow
from ringkv.cli.options import ANSWERING_MODEL, SWITCH, AsJson, EngineOptions, ModelName, Sampling, option
from ringkv.cli.output import in_pieces, print_json, print_stderr
from ringkv.cli.prompts import NEEDS_TEMPLATE, read_prompt, stream_answer
from ringkv.llm.show_progress import show_progress

if TYPE_CHECKING:
    from ringkv.llm.result import StreamPiece

_prompt = partial(option, "Prompt")


@dataclass(frozen=True)
class DocumentOptions:
    prompt: Annotated[str | None, _prompt("--prompt", "TEXT", "The document; - reads stdin.")] = None
    prompt_file: Annotated[
        str | None, _prompt("--prompt-file", "FILE", "A UTF-8 text file with the document; - reads stdin.")
    ] = None
    system: Annotated[str | None, _prompt("--system", "TEXT", "System message.")] = None
    raw: Annotated[bool, _prompt("--raw", SWITCH, "Complete the prompt without the chat template.")] = False


def generate(
    question: Annotated[
        str | None,
        typer.Argument(metavar="QUESTION", help="The question, put after the document if there is one."),
    ] = None,
    *,
    document: DocumentOptions,
    model: ModelName = ANSWERING_MODEL,
    engine: EngineOptions,
    sampling: Sampling,
    as_json: AsJson = False,
) -> None:
    """Answer one question, optionally about a long document.

    The answer streams to stdout; progress and a line about the cache go to stderr. The first run of a model
    answers with plain functions, which are slower, and compiles its graphs in the background for later runs.

        ringkv generate "What is the capital of France?"
        ringkv generate --kv-budget 512 --prompt-file BIG.txt "What does it say about patents?"
        cat main.py | ringkv generate --model qwen2.5-coder-1.5b --raw --prompt -
    """
    from ringkv.llm.llm import LLM

    text = read_prompt(question, document.prompt, document.prompt_file)
    if document.raw and document.system is not None:
        raise InvalidRequest(NEEDS_TEMPLATE, "system")
    with show_progress() as progress:
        llm = LLM(model, on_progress=progress, **vars(engine.compiling_behind))
        pieces = stream_answer(
            llm,
            text,
            document.system,
            document.raw,
            sampling,
            lambda done, total: progress(done, total, "prefilling the prompt"),
        )

        with closing(pieces), in_pieces() as write:

            def show(piece: "StreamPiece") -> None:
                progress.stop()
                if not as_json:
                    write(piece.text)

            timed = follow(pieces, show)
    if as_json:
        print_json({"model": model, **timed.as_json()})
    else:
        print_stderr(timed.line())
    if why := cut_short(timed.result, sampling.max_tokens, llm.limits):
        print_stderr(why)
