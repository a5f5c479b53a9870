"""Command line flags of the cache settings."""

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ringkv.cli.options import ConversationOptions
from ringkv.cli.spread import spread
from ringkv.plan.options import Options


def typed(*arguments: str) -> Options:
    """Return the options that a command line sets."""
    made: list[Options] = []

    def command(*, engine: ConversationOptions) -> None:
        made.append(engine)

    app = typer.Typer()
    app.command()(spread(command))
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 0, ended.output
    return made[0]


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((), {}),
        (("--kv-elastic",), {"kv_elastic": True}),
        (("--kv-paper-layout",), {"kv_elastic": False}),
        (("--kv-recent", "50%"), {"kv_recent": "50%"}),
        (("--kv-compression", "4x", "--kv-budget", "7"), {"kv_compression": "4x", "kv_budget": 7}),
        (
            ("--kv-select", "snapkv", "--kv-window", "8", "--kv-turns", "continue"),
            {"kv_select": "snapkv", "kv_window": 8, "kv_turns": "continue"},
        ),
        (
            ("--kv-kernel", "5", "--kv-pooling", "avg"),
            {"kv_kernel": 5, "kv_pooling": "avg"},
        ),
    ],
)
def test_flags_become_options(arguments: tuple[str, ...], options: dict[str, Any]) -> None:
    assert typed(*arguments) == Options(**options)
