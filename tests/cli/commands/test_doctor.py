import json
import platform

import torch

from tests.cli.conftest import Cli


def test_the_report_names_versions_machine_and_choices(cli: Cli) -> None:
    result = cli("doctor")
    assert result.status == 0
    for expected in (torch.__version__, platform.python_version(), "instructions", "ringkv uses", "graphs"):
        assert expected in result.out


def test_json_has_the_same(cli: Cli) -> None:
    found = json.loads(cli("doctor", "--json").out)
    assert {package["name"]: package["version"] for package in found["packages"]}["torch"] == torch.__version__
    assert found["python"] == platform.python_version()
