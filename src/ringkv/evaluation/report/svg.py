"""svg: elements of inline SVG and HTML as text."""

from html import escape


def tag(name: str, *inner: str, **attributes: object) -> str:
    """Return an element. inner: markup that is not escaped. `class_` is class, and `_` in other names is `-`."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_shown(value))}"' for key, value in attributes.items()
    )
    return f"<{name}{written}>{''.join(inner)}</{name}>"


def text(content: str, x: float, y: float, **attributes: object) -> str:
    return tag("text", escape(content), x=x, y=y, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> str:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def title(content: str) -> str:
    """Return what a pointer shows of the element around it."""
    return tag("title", escape(content))


def view_box(width: float, height: float) -> str:
    return f"0 0 {width:g} {height:g}"


def _shown(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
