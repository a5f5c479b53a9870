"""read_object: the JSON object in a model's file, within bounds of bytes and nesting."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

from ringkv.base.errors import BadWeights
from ringkv.base.shown import one_line

LARGEST = 64 << 20  # bytes; a config has some thousands, and the index of a large model a million
DEEPEST = 64  # arrays and objects inside each other; a config has 3


def read_object(path: Path) -> dict[str, Any]:
    """Return the object. Raises BadWeights for anything else, and for a file that cannot be read."""
    too_deep = BadWeights(f"{path} is nested more than {DEEPEST} deep; fetch it again")
    try:
        if (size := path.stat().st_size) > LARGEST:
            raise BadWeights(f"{path} has {size:,} bytes; ringkv reads up to {LARGEST:,}, so fetch it again")
        value = json.loads(path.read_bytes())
    except RecursionError:
        raise too_deep from None
    except (ValueError, OSError) as error:
        raise BadWeights(f"{path} is not valid JSON ({one_line(error)}); fetch it again") from None
    if not isinstance(value, dict):
        raise BadWeights(f"{path} holds a {type(value).__name__}, not a JSON object; fetch it again")
    if _depth(value) > DEEPEST:
        raise too_deep
    return value


def _depth(value: Any) -> int:
    """Return how deep arrays and objects are inside each other, at most one more than `DEEPEST`. Not recursive."""
    level, depth = [value], 0
    while (level := [part for part in level if isinstance(part, dict | list)]) and depth <= DEEPEST:
        items = (part.values() if isinstance(part, dict) else part for part in level)
        level, depth = list(chain.from_iterable(items)), depth + 1
    return depth
