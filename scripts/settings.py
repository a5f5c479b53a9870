"""Write the table of settings in docs/policies.md, between its markers.

    python scripts/settings.py

The settings are declared in `ringkv.plan.kv_settings`; a test compares the page with them.
"""

from pathlib import Path

from ringkv.plan.kv_settings import AT_START, PER_REQUEST, Setting

PAGE = Path(__file__).parent.parent / "docs" / "policies.md"
BEGIN, END = "<!-- settings:begin -->\n", "<!-- settings:end -->"


def table() -> str:
    """Return a Markdown table with a row for each setting."""
    head = "| setting | default | set at, for `kv_select` | |\n|---|---|---|---|\n"
    return head + "".join(_row(name, setting) for name, setting in {**AT_START, **PER_REQUEST}.items())


def _row(name: str, setting: Setting) -> str:
    places = [place for place, names in (("start", AT_START), ("request", PER_REQUEST)) if name in names]
    place = "both" if len(places) > 1 else places[0]
    cells = (f"`{name}`", setting.default, ", ".join((place, *setting.selectors)), f"{setting.help}.")
    return f"| {' | '.join(cells)} |\n"


def with_table(page: str) -> str:
    """Return the page with its table replaced."""
    before, after = page.index(BEGIN) + len(BEGIN), page.index(END)
    return page[:before] + table() + page[after:]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
