import json
from pathlib import Path

import pytest

from ringkv.residency.catalogue import catalogue
from tests.cli.conftest import Cli

pytestmark = pytest.mark.usefixtures("tmp_cache")


def test_every_model_of_the_catalogue_has_a_row(cli: Cli) -> None:
    table, titles = cli("models").out.split("\n\n")
    rows = [line.split() for line in table.splitlines()[1:]]
    assert [row[0] for row in rows] == list(catalogue())
    assert [row[1] for row in rows] == ["no"] * len(rows)
    assert titles.splitlines() == [f"{name}: {model.title}" for name, model in catalogue().items()]


def test_the_table_fits_a_terminal_of_80_columns(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = cli("models").out
    monkeypatch.setattr("ringkv.cli.output.WIDE", 80)
    assert cli("models").out == wide
    assert max(map(len, wide.splitlines())) <= 80


def test_a_model_that_was_pulled_is_on_this_machine(cli: Cli, tmp_cache: Path) -> None:
    (tmp_cache / "models").mkdir(parents=True)
    (tmp_cache / "models" / catalogue()["smollm2"].file).write_bytes(b"12345")
    rows = {line.split()[0]: line.split()[1:4] for line in cli("models").out.split("\n\n")[0].splitlines()[1:]}
    assert rows["smollm2"] == ["yes", "5", "B"]
    assert rows["qwen2.5-coder-1.5b"][0] == "no"


def test_json_has_what_is_on_this_machine(cli: Cli, tmp_cache: Path) -> None:
    model = catalogue()["smollm2"]
    (tmp_cache / "models").mkdir(parents=True)
    (tmp_cache / "models" / model.file).write_bytes(b"12345")
    found = {one["name"]: one for one in json.loads(cli("models", "--json").out)}
    assert (found["smollm2"]["pulled"], found["smollm2"]["disk_bytes"]) == (True, 5)
    assert found["qwen2.5-coder-1.5b"]["pulled"] is False
