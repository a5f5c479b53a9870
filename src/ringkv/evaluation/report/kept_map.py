"""kept_map: which tokens of one prompt each cell kept: a strip shaded by how many heads kept them, and all heads."""

import struct
import zlib
from base64 import b64encode
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ringkv.evaluation import kept
from ringkv.evaluation.cells import FULL
from ringkv.evaluation.kept import Kept, Landmarks
from ringkv.evaluation.report.svg import tag, view_box

BLUE = (0x2F, 0x8F, 0xD8)  # visible on light and dark
SHADES = 10
SIGNATURE = b"\x89PNG\r\n\x1a\n"
EIGHT_BITS, RGBA = 8, 6


class Strip(NamedTuple):
    """One cell. strip: SVG of the share of heads that kept each bin. heads: image with a row for each head."""

    cell: str
    strip: str
    heads: str
    about: str
    rows: int


class KeptMaps(NamedTuple):
    strips: list[Strip]
    landmarks: Landmarks


def kept_maps(folder: Path) -> KeptMaps | None:
    """Return the maps of a folder; None if it has none."""
    strips = [_strip(one) for one in kept.read(folder) if one.cell != FULL]
    return KeptMaps(strips, kept.read_landmarks(folder)) if strips else None


def _strip(one: Kept) -> Strip:
    layers = len(one.shares) // one.heads
    about = f"{one.cell}: of {layers} layers with {one.heads} key-value heads, from the first (top) to the last"
    return Strip(one.cell, _shaded(one.cell, one.shares.mean(0)), opacity_uri(one.shares, BLUE), about, len(one.shares))


def _shaded(cell: str, shares: np.ndarray) -> str:
    """Return an SVG that stretches to its box, with a path for each shade."""
    levels = np.round(SHADES * shares).astype(int)
    levels[(levels == 0) & (shares > 0)] = 1  # what any head kept is visible
    paths = (
        tag("path", d=_cells(levels == level), fill_opacity=level / SHADES)
        for level in range(1, SHADES + 1)
        if (levels == level).any()
    )
    alt = f"{cell} kept {shares.mean():.0%} of the prompt"
    box = view_box(len(shares), 1)
    return tag("svg", *paths, viewBox=box, preserveAspectRatio="none", role="img", aria_label=alt)


def _cells(chosen: np.ndarray) -> str:
    """Return the path of the chosen bins; neighbours are one rectangle."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(int)))
    return "".join(f"M{start} 0h{stop - start}v1h{start - stop}z" for start, stop in edges.reshape(-1, 2).tolist())


def opacity_uri(shares: np.ndarray, colour: tuple[int, int, int]) -> str:
    """Return a PNG of one colour, as a data URI, of opacities [height, width] of 0 to 1. It fits any background.

    Source: PNG (ISO/IEC 15948)."""
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
