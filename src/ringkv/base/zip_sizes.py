"""ZipSizes: entries and bytes of a slot in the format zipcache (ZipCache, arXiv 2405.14256). No torch.

C entries of a slot, D elements of a vector. A slot has, for each key-value head,

    plain entries   SINKS first tokens, and a buffer of the CHUNK newest ones, in the engine's dtype
    a fixed chunk   the tokens of the prompt that are never evicted
    more chunks     of CHUNK tokens each, which are evicted as a whole

Salient tokens of a chunk have 4 bits, the others 2. Channels of keys have a scale and a minimum for each of both,
channels of values a factor, and tokens of values a scale and a minimum, all of a chunk and in float16.
"""

from typing import NamedTuple

from ringkv.base.kv import SINKS

CHUNK = 100  # tokens that are encoded together while decoding
SALIENT = 60  # of 100 tokens
COUNTS = 5  # integers that say what a slot holds, see `kernels.zip_slots`
_HALF, _FLOAT, _INT = 2, 4, 4  # bytes
_KEY_PARAMETERS, _VALUE_PARAMETERS, _RANGE = 4, 1, 2  # per channel of keys and values; per token of values


def salient_of(tokens: int) -> int:
    """Return how many of the tokens of a chunk have 4 bits."""
    return -(-tokens * SALIENT // 100)


class ZipSizes(NamedTuple):
    """plain: entries in the engine's dtype. high, low: entries in 4 and in 2 bits. chunks: with own parameters."""

    plain: int
    high: int
    low: int
    chunks: int

    @classmethod
    def of(cls, capacity: int) -> "ZipSizes":
        """Return the sizes of a slot of C entries, for any division into entries that stay and entries of a ring."""
        chunks = -(-capacity // CHUNK)
        high = salient_of(capacity) + salient_of(CHUNK)
        low = -(-capacity * (100 - SALIENT) // 100) + CHUNK - salient_of(CHUNK)
        return cls(SINKS + CHUNK, high, low, 1 + chunks)

    def tensor_bytes(self, width: int, item: int) -> tuple[int, ...]:
        """Return the bytes of a key-value head of a slot, of each tensor in the order of `kernels.zip_slots.ZipSlots`.

        item: bytes of an element of the engine's dtype.
        """
        vectors = self.plain * width * item, self.high * width // 2, self.low * width // 4
        channels = self.chunks * width * _HALF
        keys = (*vectors, _KEY_PARAMETERS * channels, CHUNK * _FLOAT)
        values = (*vectors, _VALUE_PARAMETERS * channels, (self.high + self.low) * _RANGE * _HALF)
        return (*keys, *values, COUNTS * _INT)


def counts_of(tokens: int, fixed: int) -> list[int]:
    """Return the counts of a slot that was filled with so many tokens, of which the first `fixed` stay.

    They are in the order of `kernels.constants`: sinks, tokens in the buffer, tokens in chunk 0, chunks after it, and
    the place of the oldest one.
    """
    sinks, chunks = min(SINKS, fixed), max(0, tokens - fixed - 1) // CHUNK
    return [sinks, tokens - fixed - chunks * CHUNK, fixed - sinks, chunks, 0]


def chunk_bytes(width: int, tokens: int) -> int:
    """Return the bytes of a head's chunk of so many tokens: keys, values and their parameters."""
    high = salient_of(tokens)
    codes = 2 * (high * width // 2 + (tokens - high) * width // 4)
    return codes + (_KEY_PARAMETERS + _VALUE_PARAMETERS) * width * _HALF + tokens * _RANGE * _HALF


def entry_bytes(width: int) -> int:
    """Return the bytes of a token and head in a chunk of CHUNK tokens, rounded up."""
    return -(-chunk_bytes(width, CHUNK) // CHUNK)
