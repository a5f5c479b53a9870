"""Traces: which prompt tokens the last requests with `trace` kept. The engine's process has them, packed as bits.

L layers, H key-value heads of all together, n prompt tokens.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice, Layouts
from ringkv.base.log_lines import answer_id
from ringkv.base.messages import KeptTokens
from ringkv.base.request import Request

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

REQUESTS = 8
BYTES = 64 << 20  # of all bits: 8 prompts of 100,000 tokens in a model of 80 layers and 8 heads

ReadKept = Callable[[], "Sequence[NDArray[np.int64]]"]
"""Returns what `Engine.kept` does."""


class Traces:
    """At most `REQUESTS` requests, and `BYTES` bytes. The oldest leave first.

    heads: key-value heads of each layer.
    """

    def __init__(self, heads: Sequence[int]) -> None:
        self._heads = tuple(heads)
        self._kept: dict[str, KeptTokens] = {}

    def add(self, request: Request, choice: KVChoice, layouts: Layouts, kept: ReadKept) -> None:
        """Remember what a request keeps of its prompt; `kept` is read unless that is everything."""
        n = len(request.tokens)
        try:
            bits = None if all(layout.live(n) == n for layout in layouts) else packed(kept(), n)
        except InvalidRequest:  # the engine does not know it
            return
        tokens = KeptTokens(request.owner, n, self._heads, choice.policy, layouts[0], bits)
        self._kept[answer_id(request.id)] = tokens
        while len(self._kept) > REQUESTS or sum(len(tokens.bits or b"") for tokens in self._kept.values()) > BYTES:
            del self._kept[next(iter(self._kept))]

    def find(self, name: str) -> KeptTokens | None:
        """Return what a request has kept. name: its id, without that of an HTTP request."""
        return self._kept.get(name)


def packed(kept: "Sequence[NDArray[np.int64]]", n: int) -> bytes:
    """Return which of n tokens each head holds, a row of bits per head, from each layer's entries int64 [H, live].

    An entry below 0 holds no token.
    """
    import numpy as np

    rows = []
    for entries in kept:
        holds = np.zeros((len(entries), n + 1), bool)  # the last column takes what holds no token
        np.put_along_axis(holds, np.maximum(entries, -1), True, axis=1)
        rows.append(np.packbits(holds[:, :n], axis=1).tobytes())
    return b"".join(rows)
