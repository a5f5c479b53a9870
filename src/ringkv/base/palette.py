"""palette: the colours of a slot's parts, of verdicts and of policies, for reports, pages and the terminal.

Each colour has a value for light and for dark backgrounds. Deuteranopes, protanopes and tritanopes can tell the parts
apart; verdicts always have their words too, and policies their marks.
"""

from collections.abc import Mapping
from typing import NamedTuple

BLACK, WHITE = "#000000", "#ffffff"


class Colour(NamedTuple):
    """The same colour as #rrggbb on a light and on a dark background."""

    light: str
    dark: str

    @property
    def either(self) -> str:
        """Return the mix of both that is best readable on white and on black: a terminal's background is not known."""
        mixes = [_mixed(self.light, self.dark, step / 10) for step in range(11)]
        return max(mixes, key=lambda mix: min(contrast(mix, WHITE), contrast(mix, BLACK)))


SURFACE: Mapping[str, Colour] = {
    "background": Colour("#ffffff", "#12171d"),
    "panel": Colour("#f5f7f9", "#1a2129"),
    "line": Colour("#d8dde3", "#333d48"),
    "text": Colour("#1a2129", "#e8ecf0"),
    "muted": Colour("#5b6470", "#a0a9b5"),
}
PARTS: Mapping[str, Colour] = {
    "sinks": Colour("#5b2a86", "#f0e4ff"),
    "selected": Colour("#0a78c2", "#4aa8e8"),
    "ring": Colour("#c2570c", "#f2a33a"),
    "evicted": Colour("#8b929c", "#6b7480"),
}
OUTCOMES: Mapping[str, Colour] = {
    "worse": Colour("#a3123f", "#ff8fa8"),
    "better": Colour("#00694b", "#43cfa0"),
    "noise": Colour("#5b6470", "#a0a9b5"),
    "few": Colour("#946200", "#ffc247"),
}
POLICIES: tuple[Colour, ...] = (
    Colour("#0a78c2", "#4aa8e8"),
    Colour("#c2570c", "#f2a33a"),
    Colour("#117a55", "#35c491"),
    Colour("#a8457f", "#e79ac6"),
    Colour("#5b2a86", "#d9c6fb"),
    Colour("#8a6a00", "#e6c84a"),
    Colour("#1a8290", "#5ed0dd"),
    Colour("#4b5563", "#b8c0ca"),
)
NONE, HALF, ALL = "#d55e00", "#f3eee6", "#0a66ad"  # of a share, on any background


def of_share(share: float) -> tuple[str, str]:
    """Return the background and the text colour of a share from 0 (orange) over a half (pale) to 1 (blue)."""
    mixed = _mixed(NONE, HALF, 2 * share) if share < 0.5 else _mixed(HALF, ALL, 2 * share - 1)
    return mixed, max((BLACK, WHITE), key=lambda text: contrast(text, mixed))


def _mixed(a: str, b: str, share: float) -> str:
    channels = zip(bytes.fromhex(a[1:]), bytes.fromhex(b[1:]), strict=True)
    return "#" + "".join(f"{round(x + (y - x) * share):02x}" for x, y in channels)


def contrast(a: str, b: str) -> float:
    """Return the contrast of two colours, from 1 to 21. Source: WCAG 2.2, contrast ratio."""
    low, high = sorted(map(_luminance, (a, b)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    shares = (value / 255 for value in bytes.fromhex(colour[1:]))
    linear = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
