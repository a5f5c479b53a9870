"""The characters that an operation of a template is going to make, known before it runs.

One operation of C cannot be interrupted: `"x" * 10**10`, `"a,b".replace(",", page)`, `"%9999999999d" % 1`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ringkv.text.render_budget import OBJECT, TemplateTooExpensive, current_budget

LARGEST_ARGUMENT = 1_000_000  # an integer passed to a function: a width, a count
LARGEST_BITS = 1 << 16  # of an integer that is computed
WIDTH = re.compile(r"\d{5,}|\*|\{[^{}]*\{")  # in a format: a large width, or a width that is an argument


def check_arguments(values: Iterable[Any]) -> None:
    """Raise TemplateTooExpensive for an integer that a function could take as a huge width or count."""
    for value in values:
        if isinstance(value, int) and abs(value) > LARGEST_ARGUMENT:
            raise TemplateTooExpensive(
                f"it passes an integer over {LARGEST_ARGUMENT:,} to a function; pass a smaller one"
            )


def of_product(left: Any, right: Any) -> int:
    """The `*` operator."""
    if isinstance(left, int) and isinstance(right, int):
        return _integer(left.bit_length() + right.bit_length())
    for sequence, count in ((left, right), (right, left)):
        if isinstance(count, int) and hasattr(sequence, "__len__"):
            return len(sequence) * max(0, count) * (1 if isinstance(sequence, str | bytes) else 8)
    return 0


def of_power(left: Any, right: Any) -> int:
    """The `**` operator."""
    if isinstance(left, int) and isinstance(right, int):
        return _integer(left.bit_length() * abs(right))
    return 0


def of_format(text: Any, *values: Any) -> int:
    """The `%` operator and `str.format`."""
    if not isinstance(text, str | bytes):
        return 0
    shown = text.decode("latin-1") if isinstance(text, bytes) else text
    if WIDTH.search(shown):
        raise TemplateTooExpensive(
            "it formats a text with a width over 9,999 or one that is computed; use a smaller width"
        )
    return len(text) + (shown.count("%") + shown.count("{")) * current_budget().charge_nested(values)


def _of_join(separator: Any, items: Any = ()) -> int:
    items = items if isinstance(items, list | tuple | dict | set | str) else ()
    return sum(_length(item) for item in items) + _length(separator) * len(items)


def of_replace(text: Any, old: Any = "", new: Any = "", count: Any = None) -> int:
    if not (isinstance(text, str | bytes) and isinstance(old, type(text)) and isinstance(new, type(text))):
        return 0
    return len(text) + text.count(old) * len(new)  # type: ignore[arg-type]


def _of_split(text: Any, separator: Any = None, *_: Any) -> int:
    separators = (separator,) if isinstance(separator, type(text)) and separator else (" ", "\n", "\t")
    counted: int = sum(map(text.count, separators)) if isinstance(text, str) else len(text)
    return OBJECT * (counted + 1)


def _of_translate(text: Any, table: Any = ()) -> int:
    longest = max(map(_length, table.values()), default=1) if isinstance(table, Mapping) else 1
    return len(text) * longest


# Methods of str and bytes whose result may be much longer than their arguments.
METHODS: Mapping[str, Callable[..., int]] = {
    "join": _of_join,
    "replace": of_replace,
    "format": of_format,
    "format_map": of_format,
    "split": _of_split,
    "rsplit": _of_split,
    "splitlines": lambda text, *_: OBJECT * (text.count("\n" if isinstance(text, str) else b"\n") + 1),
    "expandtabs": lambda text, size=8: len(text) * max(1, size) if isinstance(size, int) else 0,
    "translate": _of_translate,
}


def of_call(function: Any, arguments: tuple[Any, ...]) -> int:
    """A call of a method of a text; 0 for other functions."""
    method = getattr(function, "__wrapped__", function)  # the sandbox wraps `format`
    text = getattr(method, "__self__", None)
    rule = METHODS.get(getattr(method, "__name__", "")) if isinstance(text, str | bytes) else None
    return rule(text, *arguments) if rule else 0


def of_indent(text: Any, width: Any = 4, *_: Any) -> int:
    """The `indent` filter."""
    lines = text.count("\n") + 1 if isinstance(text, str) else 0
    return lines * (width if isinstance(width, int) else _length(width))


def _integer(bits: int) -> int:
    if bits > LARGEST_BITS:
        raise TemplateTooExpensive(f"it computes an integer of over {LARGEST_BITS:,} bits; correct the template")
    return 0


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes) else OBJECT
