import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringkv.machine.paths import cache_dir
from ringkv.weights.query_statistics import partial_path, path_of, read
from tests.cli.conftest import SMALL, Cli

COMPUTE = ("--dtype", "float32", "--threads", "1")
TRIATTENTION = ("--kv-policy", "triattention", "--kv-review", "8")


@pytest.fixture
def statistics(model_dir: Path) -> Iterator[Path]:
    """The file of the model's statistics, which is removed after a test."""
    path = path_of(model_dir, cache_dir())
    yield path
    for one in (path, partial_path(path), path.with_name(f".{path.name}.lock")):
        one.unlink(missing_ok=True)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("A tokenizer whose tokens are bytes. " * 40)
    return path


def test_a_model_has_to_be_calibrated_once_and_answers_then(
    cli: Cli, model_dir: Path, statistics: Path, text: Path
) -> None:
    answer = ("generate", "--model", model_dir, "--max-tokens", 60, "--ignore-eos", "Hi?", *SMALL, *TRIATTENTION)
    missing = cli(*answer)
    assert missing.status == 2
    assert missing.last_line.endswith(f"there are none; make them once with `ringkv calibrate {model_dir}`")
    found = cli("calibrate", model_dir, "--text", text, "--json", *COMPUTE)
    assert json.loads(found.out) == {"model": str(model_dir), "file": str(statistics), "tokens": 1024}
    assert "calibrating" in found.err
    assert (read(statistics) or pytest.fail("no file")).tokens == 1024
    answered = cli(*answer)
    assert answered.status == 0
    assert "evicted 8, 1 review |" in answered.err


@pytest.mark.usefixtures("statistics")
def test_the_same_text_is_not_read_twice_and_another_one_is(cli: Cli, model_dir: Path, text: Path) -> None:
    found = [cli("calibrate", model_dir, "--text", text, *COMPUTE) for _ in range(2)]
    assert found[0].out == found[1].out
    assert found[0].out.endswith("is calibrated on 1,024 tokens; serve it with --kv-policy triattention\n")
    assert [("calibrating" in one.err) for one in found] == [True, False]
    by_default = cli("calibrate", model_dir, "--tokens", 600, *COMPUTE)
    assert "calibrated on 512 tokens" in by_default.out
    assert "calibrating" in by_default.err


@pytest.mark.usefixtures("statistics")
def test_an_interruption_says_how_to_go_on(
    cli: Cli, model_dir: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ringkv.engine.calibrate.calibrate", interrupted)
    found = cli("calibrate", model_dir, "--text", text, *COMPUTE)
    assert found.status == 130
    assert found.err.splitlines()[-2:] == ["whole windows are saved; the same command goes on", "ringkv: interrupted"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tokens", "9"), "--tokens is 9; it must be at least 256"),
        (("--text", "short.txt"), "short.txt gives 5 tokens, and 256 are needed; give a longer text"),
        (("--text", "none.txt"), "none.txt cannot be read"),
    ],
)
@pytest.mark.usefixtures("statistics")
def test_choices_that_cannot_be_are_refused(
    arguments: tuple[str, ...], message: str, cli: Cli, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("short")
    result = cli("calibrate", model_dir, *arguments)
    assert result.status == 2
    assert message in result.last_line
