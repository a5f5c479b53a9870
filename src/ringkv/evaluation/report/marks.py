"""marks: a shape and a colour for each policy, so that none depends on its colour alone."""

from ringkv.base.palette import POLICIES
from ringkv.evaluation.report.svg import tag

SHAPES = (  # within -5 .. 5
    "M0-5A5 5 0 1 1 0 5A5 5 0 1 1 0-5Z",
    "M-4.4-4.4H4.4V4.4H-4.4Z",
    "M0-5.6L5.4 4.2H-5.4Z",
    "M0-6L6 0L0 6L-6 0Z",
    "M0 5.6L5.4-4.2H-5.4Z",
    "M-1.8-5.4H1.8V-1.8H5.4V1.8H1.8V5.4H-1.8V1.8H-5.4V-1.8H-1.8Z",
    "M-4.2 5.4L0 2.6L4.2 5.4L2.7.6L6.2-2.3L1.8-2.4L0-6.4L-1.8-2.4L-6.2-2.3L-2.7.6Z",
)


def colour_class(number: int) -> str:
    return f"p{number % len(POLICIES)}"


def mark(number: int, x: float, y: float, *inner: str, is_hollow: bool = False) -> str:
    """Return a policy's mark. is_hollow: too few prompts to tell."""
    kind = "mark hollow" if is_hollow else "mark"
    shape = SHAPES[number % len(SHAPES)]
    return tag(
        "path", *inner, class_=f"{kind} {colour_class(number)}", d=shape, transform=f"translate({x:.1f} {y:.1f})"
    )
