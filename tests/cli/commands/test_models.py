import json
from pathlib import Path

import pytest

from ringkv.residency.catalogue import catalogue
from tests.cli.conftest import Cli

pytestmark = pytest.mark.usefixtures("tmp_cache")


def test_every_model_of_the_catalogue_has_a_row(cli: Cli) -> None:
    rows = [line.split() for line in cli("models").out.splitlines()[1:]]
    assert [row[0] for row in rows] == list(catalogue())
    assert all("no" in row for row in rows)


def test_json_tells_what_is_here(cli: Cli, tmp_cache: Path) -> None:
    model = catalogue()["smollm2"]
    (tmp_cache / "models").mkdir(parents=True)
    (tmp_cache / "models" / model.file).write_bytes(b"12345")
    found = {one["name"]: one for one in json.loads(cli("models", "--json").out)}
    assert (found["smollm2"]["pulled"], found["smollm2"]["disk_bytes"]) == (True, 5)
    assert found["qwen2.5-coder-1.5b"]["pulled"] is False
