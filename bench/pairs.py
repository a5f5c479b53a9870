"""pairs: how many pairs of features work together, and what does not, for docs/formats.md.

    python -m bench.pairs     print how many pairs are refused, at an earlier commit and now, and how many work

Features of one setting, or of one model, exclude each other and are no pair. A feature that needs another one is
refused with what the other one is refused with.
"""

from collections.abc import Collection, Mapping
from itertools import combinations

from bench.arguments import command_line
from ringkv.base.cannot import CANNOT, INSTEAD, Feature

Features = frozenset[Feature]
COMMIT = "f512e044"
NO_LONGER_REFUSED: tuple[tuple[Feature, Feature], ...] = (
    ("ragged heads", "int8"),
    ("ragged heads", "int4"),
    ("pages", "int4"),
    ("reviews", "int8"),
    ("reviews", "int4"),
    ("ragged heads", "handoff"),
    ("zipcache", "handoff"),
    ("pages", "handoff"),
    ("reviews", "handoff"),
    ("workspace", "handoff"),
    ("drafts", "reviews"),
    ("reviews", "ranks"),
    ("reviews", "shared caches"),
)
"""Pairs that models/slot_formats.py refused at COMMIT beside those of CANNOT: `_check_heads` and `_check_reviewed` took
plain slots alone, `_check_pages` plain and int8 ones, and `check_handoff` those without pages whose heads are equal.
`_check_reviewed` and the checks of drafts and ranks refused reviews, and cli/roles.py a workspace."""
REMOVED: Mapping[str, tuple[str, ...]] = {
    "fp8": ("ragged heads", "reviews", "pages", "tier on disk", "tier in host memory"),
    "turbo4": ("ragged heads", "reviews", "pages", "tier on disk", "tier in host memory", "latents"),
    "estimate": ("tier in host memory", "ragged heads", "zipcache", "int4", "handoff", "latents", "only windows"),
    "weigh": ("latents", "selector weighs", "reselect"),
    "reselect": ("selector weighs", "selector prefills twice"),
    "prefetch": ("latents", "shared caches"),
    "pages by layer": ("ranks",),
}
"""Settings and values of COMMIT that are gone, with what models/slot_formats.py and prefetchable.py refused there."""
NEEDS: Mapping[Feature, Features] = {
    "tier on disk": frozenset({"pages", "every token"}),
    "tier in host memory": frozenset({"pages", "every token", "cuda"}),
    "pages": frozenset({"every token"}),
    "draft model": frozenset({"drafts"}),
}
OF_ONE_SETTING: tuple[Features, ...] = (
    frozenset({"zipcache", "int8", "int4"}),
    frozenset({"selector joins heads", "selector prefills twice"}),
    frozenset({"tier on disk", "tier in host memory"}),
    frozenset({"reviews", "every token"}),
    frozenset({"latents", "shared caches", "only windows", "some windows"}),
)


def complete(features: Collection[Feature]) -> Features:
    """Return features with those that they need."""
    return frozenset(features).union(*(NEEDS.get(feature, frozenset()) for feature in features))


def exclude(*features: Feature) -> bool:
    """Whether some of the features are of one setting, so that nobody can ask for them together."""
    return any(len(complete(features) & setting) > 1 for setting in OF_ONE_SETTING)


def pairs() -> list[tuple[Feature, Feature]]:
    """Return all pairs that somebody can ask for."""
    return [
        (first, second)
        for first, second in combinations(INSTEAD, 2)
        if not exclude(first, second) and second not in NEEDS.get(first, ()) and first not in NEEDS.get(second, ())
    ]


def refusal(features: Collection[Feature], refused: Collection[Features] = tuple(CANNOT)) -> Features | None:
    """Return the entry of the table that refuses some features; None if they work together."""
    return next((together for together in refused if together <= complete(features)), None)


def working(refused: Collection[Features]) -> int:
    """Return the number of pairs that work."""
    return sum(refusal(pair, refused) is None for pair in pairs())


def table() -> str:
    """Return the Markdown table of what does not go together."""
    lines = ["| feature | not implemented with | impossible with |", "|---|---|---|"]
    for feature in INSTEAD:
        cells: dict[str, list[str]] = {"missing": [], "impossible": []}
        for features, cannot in CANNOT.items():
            first, *others = (name for name in INSTEAD if name in features)
            if first == feature:
                cells[cannot.kind].append(" and ".join(others))
        if any(cells.values()):
            lines.append(f"| {feature} | {', '.join(cells['missing'])} | {', '.join(cells['impossible'])} |")
    return "\n".join(lines)


def main() -> None:
    command_line(__doc__, "python -m bench.pairs").parse_args()
    count, removed = len(pairs()), sum(map(len, REMOVED.values()))
    refused = count - working([*CANNOT, *map(frozenset, NO_LONGER_REFUSED)])
    work = working(tuple(CANNOT))
    print(
        f"{COMMIT} refused {refused + removed} pairs: {refused} of features that stay, {removed} of removed settings. "
        f"Now {count - work} pairs are refused, and {work} of {count} work."
    )


if __name__ == "__main__":
    main()
