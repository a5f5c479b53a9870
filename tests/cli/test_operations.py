"""docs/operations.md: its numbers are those of the program."""

import re
from pathlib import Path

from tests.cli.conftest import Cli

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "operations.md").read_text()


def test_the_worked_example_is_the_output_of_its_command(cli: Cli) -> None:
    found = re.search(r"```sh\nringkv (plan .*)\n```\n\n```text\n(.*?)\n```", PAGE, re.DOTALL)
    assert found
    result = cli(*found[1].split())
    assert result.status == 0
    assert [line.rstrip() for line in result.out.strip().splitlines()] == found[2].splitlines()
    slots = re.findall(r"^(?:full|compressed) +\S+ +[\d.]+ \w+ +(\d+)", found[2], re.MULTILINE)
    assert f"So {slots[1]} requests fit with a budget of 2,048 entries, and {slots[0]} with a full cache" in PAGE


def test_the_page_stays_short() -> None:
    assert len(PAGE.split()) <= 1200
