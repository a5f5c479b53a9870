import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

pytestmark = pytest.mark.usefixtures("tmp_cache")


def test_a_local_model_is_ready_at_once(cli: Cli, model_dir: Path) -> None:
    found = json.loads(cli("pull", model_dir, "--json").out)
    size = sum(file.stat().st_size for file in model_dir.iterdir())
    assert found == {"model": str(model_dir), "directory": str(model_dir), "bytes": size}


def test_the_models_directory_is_printed(cli: Cli, model_dir: Path) -> None:
    assert cli("pull", model_dir).out.startswith(f"{model_dir} is ready: {model_dir} (")


def test_an_unknown_name_is_refused_with_the_nearest(cli: Cli) -> None:
    result = cli("pull", "smolm2")
    assert (result.status, result.out) == (2, "")
    assert result.last_line.startswith("ringkv: no model 'smolm2'")
    assert "smollm2?" in result.last_line
