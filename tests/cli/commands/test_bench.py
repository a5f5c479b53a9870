import json
from pathlib import Path

import pytest

from tests.cli.conftest import SMALL, Cli

WORKLOAD = ("--prompt-tokens", 100, "--output-tokens", 5, "--rounds", 2, "--slots", 2)


@pytest.fixture(autouse=True)
def _small_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringkv.bench.compare.Probe.__init__.__defaults__", (1 << 20,))


def test_both_caches_stand_side_by_side(cli: Cli, model_dir: Path) -> None:
    said = cli("bench", "--model", model_dir, *SMALL, *WORKLOAD)
    assert said.status == 0
    assert f"{model_dir}: 2 requests of 100 prompt and 5 output tokens" in said.out
    rows = {line[:20].strip(): line[20:].split() for line in said.out.splitlines()}
    assert rows[""] == ["full", "snapstream", "ratio"]
    assert rows["entries a slot"][1] == "64"
    assert "GB/s; medians of 2 rounds, alternating" in said.out


def test_json_has_the_figures(cli: Cli, model_dir: Path) -> None:
    found = json.loads(cli("bench", "--model", model_dir, *SMALL, *WORKLOAD, "--json").out)
    assert (found["slots"], found["prompt_tokens"], found["rounds"]) == (2, 100, 2)
    assert found["full"]["cache"] == "full"
    assert found["compressed"]["step_bytes"] < found["full"]["step_bytes"]


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("--kv-policy", "full"), 2, "--kv-policy full is what the others are compared with"),
        (
            ("--prompt-tokens", "500", "--output-tokens", "50"),
            2,
            "500 prompt and 50 output tokens are over the model's",
        ),
        (("--output-tokens", "1"), 2, "--output-tokens is 1; it must be at least 2"),
        (("--rounds", "0"), 2, "--rounds is 0; it must be at least 1"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(
    arguments: tuple[str, ...], status: int, says: str, cli: Cli, model_dir: Path
) -> None:
    said = cli("bench", "--model", model_dir, *SMALL, *arguments)
    assert (said.status, said.out) == (status, "")
    assert said.complaint.startswith(f"ringkv: {says}")
