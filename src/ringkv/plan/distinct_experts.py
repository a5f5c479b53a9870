"""distinct_experts: the share of a layer's experts that several tokens choose together.

E experts, K chosen for each token, n tokens. All experts are equally likely and tokens choose independently, so a token
leaves an expert out with probability 1 - K / E, and n tokens do with (1 - K / E)^n:

share = 1 - (1 - K / E)^n

One token reads K experts; many read all E.
"""


def distinct_share(chosen: int, count: int, tokens: int) -> float:
    """Return the expected number of distinct experts that so many tokens choose, over `count`."""
    missed: float = (1 - chosen / count) ** tokens
    return 1 - missed
