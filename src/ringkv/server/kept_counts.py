"""kept_counts: by how many layers and heads each prompt token was kept, from packed bits.

H rows, one for each key-value head, layer by layer; n prompt tokens.
"""

from collections.abc import Sequence

from ringkv.base.errors import InvalidRequest
from ringkv.base.messages import KeptTokens


def rows_of(heads: Sequence[int], layer: int | None, head: int | None) -> list[int]:
    """Return the rows of a layer or a head, or of both, from the heads of each layer. None takes all of them.

    Raises InvalidRequest.
    """
    _check("layer", layer, len(heads))
    _check("head", head, max(heads) if layer is None else heads[layer])
    places = ((at, one) for at, count in enumerate(heads) for one in range(count))
    return [row for row, (at, one) in enumerate(places) if layer in (None, at) and head in (None, one)]


def _check(name: str, value: int | None, count: int) -> None:
    if value is not None and not 0 <= value < count:
        raise InvalidRequest(f"{name} is {value}; send 0 to {count - 1}, or leave it out for all", name)


def counts(kept: KeptTokens, rows: Sequence[int]) -> list[int]:
    """Return for each of the n tokens how many of these rows keep it."""
    if kept.bits is None:
        return [len(rows)] * kept.tokens
    import numpy as np  # not loaded before somebody asks

    bits = np.frombuffer(kept.bits, np.uint8).reshape(sum(kept.heads), -1)
    found = np.zeros(kept.tokens, np.int64)
    for row in rows:
        found += np.unpackbits(bits[row], count=kept.tokens)
    return [int(count) for count in found]
