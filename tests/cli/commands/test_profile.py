import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ringkv.base.config import EngineConfig
from ringkv.engine import head_scores
from ringkv.plan.head_profile import FILE, read
from tests.cli.conftest import SMALL, Cli

pytestmark = pytest.mark.usefixtures("tmp_cache_with_kernels")
PART = (512 - 256) // 2  # tokens, of a model with a context of 512


@pytest.fixture
def model(model_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_dir, tmp_path / "model"))


def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[EngineConfig]:
    """Give all heads fixed scores. Return the list of the engines that are built from now on."""
    engines: list[EngineConfig] = []
    monkeypatch.setattr("ringkv.engine.build.build", lambda engine, *_: engines.append(engine))
    monkeypatch.setattr(head_scores, "head_scores", lambda *_: ((1.0, 2.0),))
    return engines


def test_a_model_with_a_profile_divides_its_slots_by_it(cli: Cli, model: Path) -> None:
    found = cli("profile", model, "--tokens", 2 * PART)
    assert found.status == 0, found.err
    assert found.out.endswith(f"{model / FILE} is ready; use it with --kv-heads profile\n")
    shares = read(model / FILE).shares
    counts = [int(line[20:26]) for line in found.out.splitlines()[1:-1]]
    assert sum(counts) == sum(map(len, shares)) == 6
    answer = cli("generate", "--model", model, "--kv-heads", "profile", "--max-tokens", 4, "Hi? " * 30, *SMALL)
    assert answer.status == 0, answer.err


def test_a_model_without_one_is_refused_with_the_command_that_makes_it(cli: Cli, model: Path) -> None:
    answer = cli("generate", "--model", model, "--kv-heads", "profile", "Hi?", *SMALL)
    assert answer.status == 2
    assert answer.last_line.endswith(f"run ringkv profile {model}, or choose global")


def test_an_interrupted_run_goes_on_and_the_file_may_be_elsewhere(
    cli: Cli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, out, usual, calls = tmp_path / "text.txt", tmp_path / "mine.json", head_scores.head_scores, []
    text.write_text("A tokenizer whose tokens are bytes. " * 40)

    def interrupted(engine: Any, tokens: Any) -> Any:
        calls.append(len(tokens))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return usual(engine, tokens)

    monkeypatch.setattr(head_scores, "head_scores", interrupted)
    command = ("profile", model, "--text", text, "--tokens", 3 * PART, "--out", out, "--json")
    stopped = cli(*command)
    assert stopped.status == 130
    assert "1 of 3 parts" in stopped.err
    found = cli(*command)
    assert calls == [PART] * 4
    assert json.loads(found.out) == {
        "model": str(model),
        "file": str(out),
        "shares": [list(layer) for layer in read(out).shares],
    }
    assert not (model / FILE).exists()


def test_a_text_that_is_too_short_is_refused(cli: Cli, model: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("short")
    result = cli("profile", model, "--text", tmp_path / "short.txt")
    assert (result.status, result.out) == (2, "")
    assert f"short.txt gives 5 tokens, and {PART} " in result.last_line


def test_a_context_without_room_to_repeat_a_text_is_refused(cli: Cli, model: Path) -> None:
    config = model / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 300}))
    result = cli("profile", model)
    assert (result.status, result.out) == (2, "")
    assert "300 tokens, and 384 " in result.last_line


def test_the_options_of_computing_are_those_of_other_commands(
    cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = stand_in(monkeypatch)
    compute = ("--weights", "int8", "--activations", "16-bit", "--threads", 1)
    found = cli("profile", model, "--tokens", PART, *compute)
    assert found.status == 0, found.err
    (engine,) = engines
    assert (engine.weights, engine.activations, engine.threads) == ("int8", "16-bit", 1)


def test_a_profile_is_kept_for_the_same_files_and_weights_only(
    cli: Cli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines, other, weights = stand_in(monkeypatch), tmp_path / "other", model / "model.safetensors"
    shutil.copytree(model, other)
    (other / weights.name).touch()

    def builds(folder: Path, *options: object) -> int:
        before = len(engines)
        found = cli("profile", folder, "--tokens", PART, "--out", tmp_path / "profile.json", *options)
        assert found.status == 0, found.err
        return len(engines) - before

    assert [builds(one) for one in (model, model, other, model)] == [1, 0, 1, 1]
    assert [builds(model, "--weights", bits) for bits in ("bf16", "int4", "int4", "bf16")] == [0, 1, 0, 1]
    weights.write_bytes(weights.read_bytes())
    assert [builds(model), builds(model)] == [1, 0]
