"""Parse token counts such as 7000 or 128k."""

import re

from typer import BadParameter

from ringkv.base.errors import InvalidRequest


def parse_count(text: str, name: str) -> int:
    """Parse a count; k is 1,024 and m is 1,048,576, as in context lengths. Raises `InvalidRequest`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([km]?)", text.strip().replace(",", "").replace("_", ""), re.IGNORECASE)
    if found is None:
        raise InvalidRequest(f"{name} is {text!r}; write a count such as 7000 or 128k (which is 131,072)", name)
    return int(float(found[1]) * {"": 1, "k": 2**10, "m": 2**20}[found[2].lower()])


def token_count(value: str | int) -> int:
    """Parse a flag's count, or the number that a configuration file has. Raises `typer.BadParameter`."""
    try:
        return parse_count(str(value), "the count")
    except InvalidRequest as error:
        raise BadParameter("give a whole number, such as 7000 or 32k (which is 32,768)") from error
