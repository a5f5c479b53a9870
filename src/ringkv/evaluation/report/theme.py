"""theme: the palette as CSS variables, which follow the reader's choice of light or dark."""

from collections.abc import Iterator

from ringkv.base.palette import OUTCOMES, PARTS, POLICIES, SURFACE, Colour


def variables() -> str:
    """Return CSS that defines --NAME for each colour, and a class for each policy that sets --own."""
    light = "".join(f"--{name}:{colour.light};" for name, colour in _named())
    dark = "".join(f"--{name}:{colour.dark};" for name, colour in _named())
    own = "".join(f".p{number}{{--own:var(--policy-{number})}}" for number in range(len(POLICIES)))
    return f":root{{color-scheme:light dark;{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}{own}"


def _named() -> Iterator[tuple[str, Colour]]:
    for group in (SURFACE, PARTS, OUTCOMES):
        yield from group.items()
    for number, colour in enumerate(POLICIES):
        yield f"policy-{number}", colour
