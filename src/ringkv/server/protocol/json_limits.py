"""check_json: bounds on the nesting and the number of values of a JSON text, before it is parsed.

Parsing takes time and memory by the value, and it holds the interpreter's lock until it ends.
"""

import re
from dataclasses import dataclass

from ringkv.base.errors import InvalidRequest

# A string, which may lack its end, or a character of JSON's structure. Possessive, so its time is linear.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[][{},:]', re.DOTALL)
_DEEPER = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}


@dataclass(frozen=True)
class JSONLimits:
    """depth: of arrays and objects. keys: of all objects. values: of all arrays and objects, themselves included."""

    depth: int = 256
    keys: int = 1 << 14
    values: int = 1 << 18


def check_json(text: bytes, limits: JSONLimits) -> None:
    """Raise InvalidRequest if the text exceeds a limit or is not UTF-8. Other errors are left to the parser."""
    if b"\0" in text:
        raise InvalidRequest("the body is not JSON in UTF-8: it has a zero byte")
    if most_values(text) > limits.keys or text.count(b"{") + text.count(b"[") > limits.depth:
        _count(text, limits)


def most_values(text: bytes) -> int:
    """Return an upper bound of the number of values, which counts the commas within strings too. It is fast."""
    return 1 + text.count(b",") + text.count(b"{") + text.count(b"[")


def _count(text: bytes, limits: JSONLimits) -> None:
    depth = keys = 0
    values = 1
    for match in _TOKEN.finditer(text):
        token = match[0]
        depth += (step := _DEEPER.get(token, 0))
        keys += token == b":"
        values += token == b"," or step > 0
        if depth > limits.depth:
            raise InvalidRequest(f"the body is nested more than {limits.depth:,} deep; flatten it")
        if keys > limits.keys:
            raise InvalidRequest(f"the body has more than {limits.keys:,} keys; send fewer")
        if values > limits.values:
            raise InvalidRequest(f"the body has more than {limits.values:,} values; send several requests")
