import json
import platform
from pathlib import Path

import torch

from ringkv.machine.seal import seal
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


def test_verify_names_a_changed_file_and_exits_with_1(cli: Cli, tmp_cache: Path) -> None:
    folder = tmp_cache / "converted" / "tiny-1"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    seal(folder)
    assert (cli("doctor", "--verify").status, json.loads(cli("doctor", "--verify", "--json").out)[0]["fault"]) == (
        0,
        None,
    )
    (folder / "model.safetensors").write_bytes(b"weighty")
    result = cli("doctor", "--verify")
    assert result.status == 1
    assert f"{folder}: model.safetensors has changed" in result.out
    assert f"delete {folder}" in result.out
