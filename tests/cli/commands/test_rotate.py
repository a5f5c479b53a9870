import json
from pathlib import Path

import pytest

from tests.cli.conftest import SMALL, Cli

pytestmark = pytest.mark.usefixtures("tmp_cache_with_kernels")


def test_a_rotated_copy_answers(cli: Cli, model_dir: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A tokenizer whose tokens are bytes. " * 40)
    out = tmp_path / "out"
    found = cli("rotate", model_dir, out, "--calibration", text, "--json")
    size = sum(file.stat().st_size for file in out.iterdir())
    assert json.loads(found.out) == {"model": str(model_dir), "directory": str(out), "bytes": size}
    assert "rounding them by GPTQ" in found.err
    answer = cli("generate", "--model", out, "--max-tokens", 4, "Hi?", *SMALL)
    assert answer.status == 0
    assert answer.out.strip()


def test_the_command_that_runs_the_copy_is_printed(cli: Cli, model_dir: Path, tmp_path: Path) -> None:
    found = cli("rotate", model_dir, tmp_path / "out", "--weights", "int8")
    assert found.out.endswith(f"run it with --model {tmp_path / 'out'} --weights int8\n")


def test_a_directory_with_content_is_refused(cli: Cli, model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    result = cli("rotate", model_dir, tmp_path)
    assert (result.status, result.out) == (2, "")
    assert "is not empty" in result.last_line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--weights", "int3"), "--weights is 'int3'; choose one of bf16, int8, int4"),
        (("--weights", "int8", "--group", "32"), "group is '32'; with weights int8 choose row"),
        (("--weights", "bf16", "--calibration", "x.txt"), "calibration is for rounding"),
        (("--calibration", "short.txt"), "512 are needed; give a longer text"),
    ],
)
def test_choices_that_cannot_be_are_refused(
    arguments: tuple[str, ...], message: str, cli: Cli, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("short")
    result = cli("rotate", model_dir, tmp_path / "out", *arguments)
    assert result.status == 2
    assert message in result.last_line
