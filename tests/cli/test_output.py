"""The colours of a terminal, whose background is not known."""

import numpy as np

from ringkv.cli.output import FREE, OUTCOMES, USED


def linear(colour: str) -> np.ndarray:
    values = np.array(list(bytes.fromhex(colour[1:]))) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    """Return the contrast of two colours, from 1 to 21. Source: WCAG 2.2, contrast ratio."""
    low, high = sorted(float(np.dot((0.2126, 0.7152, 0.0722), linear(colour))) for colour in (a, b))
    return (high + 0.05) / (low + 0.05)


def test_colours_stand_out_from_white_and_from_black() -> None:
    for colour in (*OUTCOMES.values(), USED, FREE):
        assert min(contrast(colour, "#ffffff"), contrast(colour, "#000000")) >= 3
