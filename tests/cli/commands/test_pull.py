import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

pytestmark = pytest.mark.usefixtures("tmp_cache")


def test_what_is_here_is_ready_at_once(cli: Cli, model_dir: Path) -> None:
    found = json.loads(cli("pull", model_dir, "--json").out)
    size = sum(file.stat().st_size for file in model_dir.iterdir())
    assert found == {"model": str(model_dir), "directory": str(model_dir), "bytes": size}


def test_it_says_where_the_model_lies(cli: Cli, model_dir: Path) -> None:
    assert cli("pull", model_dir).out.startswith(f"{model_dir} is ready: {model_dir} (")


def test_an_unknown_name_is_refused_with_the_nearest(cli: Cli) -> None:
    said = cli("pull", "smolm2")
    assert (said.status, said.out) == (2, "")
    assert said.complaint.startswith("ringkv: no model 'smolm2'; did you mean smollm2?")
