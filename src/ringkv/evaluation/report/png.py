"""png: an image of one colour whose opacity is data, as a data URI. It looks right on any background."""

import struct
import zlib
from base64 import b64encode

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
EIGHT_BITS, RGBA = 8, 6


def opacity_uri(shares: np.ndarray, colour: tuple[int, int, int]) -> str:
    """Return a PNG of float [height, width]: transparent for 0, opaque for 1. Source: PNG (ISO/IEC 15948)."""
    height, width = shares.shape
    pixels = np.empty((height, width, 4), np.uint8)
    pixels[..., :3] = colour
    pixels[..., 3] = np.round(255 * shares)
    rows = np.hstack([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)])  # each begins with filter 0
    header = struct.pack(">IIBBBBB", width, height, EIGHT_BITS, RGBA, 0, 0, 0)
    chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)) + _chunk(b"IEND", b"")
    return f"data:image/png;base64,{b64encode(SIGNATURE + chunks).decode()}"


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
