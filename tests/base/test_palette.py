"""The colours compared with what people with and without colour vision deficiencies can tell apart."""

from itertools import combinations

import numpy as np
import pytest

from ringkv.base.palette import BLACK, OUTCOMES, PARTS, POLICIES, SURFACE, WHITE, contrast, of_share

# Source: Machado, Oliveira and Fernandes, 2009, severity 1, on linear RGB.
VISION = {
    "usual": np.eye(3),
    "deuteranope": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    ),
    "protanope": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "tritanope": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]
    ),
}
# Source: Ottosson, OKLab, 2020.
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.793617785, -0.0040720468],
        [1.9779984951, -2.428592205, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.808675766],
    ]
)
THEMES = ("light", "dark")


def seen(colour: str, vision: np.ndarray) -> np.ndarray:
    """Return OKLab of a colour as it is seen."""
    values = np.array(list(bytes.fromhex(colour[1:]))) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return TO_LAB @ np.cbrt(TO_CONES @ np.clip(vision @ linear, 0, 1))


def distance(a: str, b: str) -> float:
    return min(float(np.linalg.norm(seen(a, one) - seen(b, one))) for one in VISION.values())


def test_contrast_is_that_of_known_pairs() -> None:
    assert contrast(BLACK, WHITE) == pytest.approx(21)
    assert contrast("#777777", WHITE) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
def test_parts_and_policies_stand_out_from_the_background_and_verdicts_can_be_read(theme: str) -> None:
    background, panel = (getattr(SURFACE[name], theme) for name in ("background", "panel"))
    for colour in (*PARTS.values(), *POLICIES):
        assert contrast(getattr(colour, theme), background) >= 3
    for colour in (*OUTCOMES.values(), SURFACE["text"], SURFACE["muted"]):
        assert min(contrast(getattr(colour, theme), one) for one in (background, panel)) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
def test_parts_are_distinct_for_everyone(theme: str) -> None:
    for a, b in combinations(PARTS.values(), 2):
        assert distance(getattr(a, theme), getattr(b, theme)) > 0.1


def test_in_a_terminal_colours_stand_out_from_white_and_from_black() -> None:
    for colour in (*OUTCOMES.values(), PARTS["selected"], PARTS["evicted"]):
        assert min(contrast(colour.either, WHITE), contrast(colour.either, BLACK)) >= 3


def test_a_share_can_be_read_on_its_own_colour_and_its_ends_are_distinct_for_everyone() -> None:
    assert min(contrast(*of_share(percent / 100)) for percent in range(101)) >= 4.5
    assert distance(of_share(0)[0], of_share(1)[0]) > 0.2
