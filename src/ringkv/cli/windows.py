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


def read_windows(folder: Path, text: Path | None, limit: int, size: int) -> list[list[int]]:
    """Return the text's first tokens, `limit` or fewer, in whole windows of `size` tokens.

    text: a file; None is Python's manual. Raises InvalidRequest if there are fewer tokens than a window has.
    """
    from ringkv.cli.document import whole_manual
    from ringkv.cli.prompts import read_file
    from ringkv.text.tokenizer import Tokenizer

    limit = max(limit, 0)
    beginning = (whole_manual() if text is None else read_file(str(text)))[: limit * CHARACTERS_PER_TOKEN]
    tokens = Tokenizer.from_directory(folder).encode(beginning, add_special_tokens=False)[:limit]
    if len(tokens) < size:
        raise InvalidRequest(
            f"{text or MANUAL} gives {len(tokens):,} tokens, and {size:,} are needed; give a longer text, or more "
            "tokens"
        )
    return [list(tokens[start : start + size]) for start in range(0, len(tokens) - size + 1, size)]
