from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from ringkv.cli.spread import spread


@dataclass(frozen=True)
class Size:
    width: Annotated[int, typer.Option("--width")] = 3
    tall: Annotated[bool, typer.Option("--tall")] = False


def run(*arguments: str) -> str:
    app = typer.Typer()

    @app.command()
    @spread
    def show(name: Annotated[str, typer.Argument()], *, size: Size, loud: bool = False) -> None:
        typer.echo(f"{name} {size} {loud}")

    return CliRunner().invoke(app, arguments).output


def test_the_fields_of_a_dataclass_become_options() -> None:
    assert run("box", "--width", "5", "--tall", "--loud") == "box Size(width=5, tall=True) True\n"


def test_fields_keep_their_defaults() -> None:
    assert run("box") == "box Size(width=3, tall=False) False\n"


def test_their_types_are_checked() -> None:
    assert "--width" in run("box", "--width", "wide")
