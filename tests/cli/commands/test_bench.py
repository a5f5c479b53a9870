import json
from pathlib import Path

import pytest

from tests.cli.conftest import SMALL, Cli

WORKLOAD = ("--prompt-tokens", 100, "--output-tokens", 5, "--rounds", 2, "--slots", 2)


@pytest.fixture(autouse=True)
def _small_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringkv.bench.probe.AMOUNTS", (1 << 16, 1 << 20))
    monkeypatch.setattr("ringkv.bench.probe.PRODUCTS", ((8, 16, 8),))
    monkeypatch.setattr("ringkv.bench.probe.ATTENTION", ((1, 8, 16),))


def test_both_caches_stand_side_by_side(cli: Cli, model_dir: Path) -> None:
    result = cli("bench", "--model", model_dir, *SMALL, *WORKLOAD)
    assert result.status == 0
    assert f"{model_dir}: 2 requests of 100 prompt and 5 output tokens" in result.out
    rows = {line[:20].strip(): line[20:].split() for line in result.out.splitlines()}
    assert rows[""] == ["full", "snapstream", "ratio"]
    assert rows["entries per slot"][1] == "64"
    assert "medians of 2 rounds, alternating" in result.out


def test_limits_stand_beside_the_speeds_they_limit(cli: Cli, model_dir: Path) -> None:
    result = cli("bench", "--model", model_dir, *SMALL, *WORKLOAD, "--limit")
    table = [line.split("  ") for line in result.out.splitlines()]
    rows = {cells[0]: [cell.strip() for cell in cells[1:] if cell] for cells in table}
    heads = [line.split() for line in result.out.splitlines() if "limit" in line]
    assert heads == [["full", "limit", "reached", "snapstream", "limit", "reached", "ratio"]]
    assert len(rows["entries per slot"]) == 3
    full, limit, reached, *_ = rows["decode, tok/s total"]
    shares = [float(number.replace(",", "")) for number in (full, limit)]
    assert int(reached.rstrip("%")) == pytest.approx(100 * shares[0] / shares[1], abs=1)
    assert "bfloat16 matrix products: " in result.out


def test_json_has_the_figures(cli: Cli, model_dir: Path) -> None:
    found = json.loads(cli("bench", "--model", model_dir, *SMALL, *WORKLOAD, "--json").out)
    assert (found["slots"], found["prompt_tokens"], found["rounds"]) == (2, 100, 2)
    assert found["full"]["cache"] == "full"
    assert found["compressed"]["step_bytes"] < found["full"]["step_bytes"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--kv-policy", "full"), 2, "--kv-policy full is the baseline of the comparison"),
        (
            ("--prompt-tokens", "500", "--output-tokens", "50"),
            2,
            "500 prompt and 50 output tokens are over the model's",
        ),
        (
            ("--prompt-tokens", "90", "--max-prompt", "80"),
            2,
            "--prompt-tokens 90 is over --max-prompt 80; lower the first",
        ),
        (("--output-tokens", "1"), 2, "--output-tokens is 1; it must be at least 2"),
        (("--rounds", "0"), 2, "--rounds is 0; it must be at least 1"),
    ],
)
def test_an_invalid_workload_is_refused(
    arguments: tuple[str, ...], status: int, message: str, cli: Cli, model_dir: Path
) -> None:
    result = cli("bench", "--model", model_dir, *SMALL, *arguments)
    assert (result.status, result.out) == (status, "")
    assert result.last_line.startswith(f"ringkv: {message}")
