"""docs/how-to/more-requests.md: its numbers are those of the program."""

import re
from pathlib import Path

from tests.cli.conftest import Cli

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "how-to" / "more-requests.md").read_text()


def test_the_worked_example_is_the_output_of_its_command(cli: Cli) -> None:
    found = re.search(r"```sh\nringkv (plan .*)\n```\n\n```text\n(.*?)\n```", PAGE, re.DOTALL)
    assert found
    result = cli(*found[1].split())
    assert result.status == 0
    assert [line.rstrip() for line in result.out.strip().splitlines()] == found[2].splitlines()
    slots = re.findall(r"^(?:full|compressed) +\S+ +[\d.]+ \w+ +(\d+)", found[2], re.MULTILINE)
    assert f"So {slots[1]} requests fit with a budget of 2,048 entries, and {slots[0]} with a full cache" in PAGE


def test_each_setting_gives_the_slots_of_the_table(cli: Cli) -> None:
    command = re.search(r"^ringkv (plan qwen3-4b .*)$", PAGE, re.MULTILINE)
    rows = re.findall(r"^\| (?:none|`(--.*?)`) \| (\d+) \|", PAGE, re.MULTILINE)
    assert command
    assert len(rows) > 5
    for setting, slots in rows:
        shown = cli(*command[1].split(), *setting.split()).out
        assert re.search(rf"^(?:compressed|arkvale) +\S+ +[\d.]+ \w+ +{slots} ", shown, re.MULTILINE), setting
