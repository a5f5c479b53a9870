"""Windows: the first tokens of a text in equal parts, on which a command measures a model."""

from pathlib import Path
from typing import Annotated

import typer

from ringkv.base.errors import InvalidRequest

WINDOW = 2048  # tokens
CHARACTERS_PER_TOKEN = 16  # at most, on average
MANUAL = "Python's manual"

Text = Annotated[
    Path | None,
    typer.Option("--text", metavar="FILE", help=f"A UTF-8 text like those to serve. Default: {MANUAL}."),
]
Tokens = Annotated[int, typer.Option("--tokens", metavar="N", help="How many tokens of the text are used at most.")]


def read_windows(
    folder: Path, text: Path | None, most: int, size: int = WINDOW, least: int | None = None
) -> list[list[int]]:
    """Return the text's first tokens, `most` or fewer, in whole windows of `size` tokens.

    text: a file; None is Python's manual. least: a text of so many tokens may be one shorter window; by default `size`.
    Raises InvalidRequest if there are fewer.
    """
    from ringkv.text.tokenizer import Tokenizer

    most, least = max(most, 0), size if least is None else least
    beginning = _read(text)[: most * CHARACTERS_PER_TOKEN]
    tokens = Tokenizer.from_directory(folder).encode(beginning, add_special_tokens=False)[:most]
    if len(tokens) < least:
        raise InvalidRequest(
            f"{text or MANUAL} gives {len(tokens):,} tokens, and {least:,} are needed; give a longer text, or more "
            "tokens"
        )
    size = min(size, len(tokens))
    return [list(tokens[start : start + size]) for start in range(0, len(tokens) - size + 1, size)]


def _read(text: Path | None) -> str:
    from ringkv.cli.document import whole_manual
    from ringkv.cli.prompts import read_file

    return whole_manual() if text is None else read_file(str(text))
