"""option: one flag in a panel of --help."""

from typing import Any

import typer


def option(panel: str, flag: str, metavar: str | None, help: str, show_default: bool = False, **more: Any) -> Any:
    """Return the typer option. A default is shown only on request: most helps say it in words.

    flag: one name, or several with commas between.
    """
    return typer.Option(
        *flag.split(","), metavar=metavar, help=help, rich_help_panel=panel, show_default=show_default, **more
    )
