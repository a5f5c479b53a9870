"""shown: a foreign value in an error message, as one short line."""

import re
from collections.abc import Iterable
from typing import Any

CHARACTERS = 60
NAMES = 5
WORDS = 300  # characters of another library's error
_PLAIN = re.compile(r"[\w.+/:-]{1,120}", re.ASCII)


def shown(value: Any) -> str:
    """Return `repr(value)` in ASCII and on one line, shortened to `CHARACTERS`."""
    text = ascii(value[:CHARACTERS] if isinstance(value, str | bytes) else value)
    return text if len(text) <= CHARACTERS else f"{text[: CHARACTERS - 3]}..."


def shown_names(names: Iterable[str]) -> str:
    """Return the first names; ordinary ones as they are, others quoted and shortened."""
    names = list(names)
    first = [name if _PLAIN.fullmatch(name) else shown(name) for name in names[:NAMES]]
    return ", ".join(first) + (", ..." if len(names) > NAMES else "")


def one_line(error: BaseException) -> str:
    """Return another library's words for an error, in ASCII on one line, shortened to `WORDS`."""
    text = " ".join(str(error).split()) or type(error).__name__
    return "".join(char if char.isascii() and char.isprintable() else ascii(char)[1:-1] for char in text[:WORDS])
