"""Router: how a mixture of experts chooses some for each token, as plain data."""

from typing import NamedTuple


class Router(NamedTuple):
    """Chooses `chosen` of `experts` for a token, by the softmax of x times the router's matrix, or by its sigmoid.

    normalised: the weights of the chosen experts add up to 1, before they are multiplied by `scale`. groups,
    kept_groups, best: experts are chosen in `kept_groups` of `groups` alone, those with the highest sum of their `best`
    scores (DeepSeek-V2, arXiv 2405.04434; V3, arXiv 2412.19437).
    """

    experts: int
    chosen: int
    is_sigmoid: bool = False
    normalised: bool = True
    scale: float = 1.0
    groups: int = 1
    kept_groups: int = 1
    best: int = 1
