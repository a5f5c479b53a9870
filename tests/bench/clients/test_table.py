from pathlib import Path

from bench.clients.__main__ import CLIENTS, _keep
from bench.clients.checks import Check
from bench.report.__main__ import clients
from bench.results import figures, latest, read


def test_checks_of_a_client_are_counted_and_failures_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    _keep(
        "openai",
        "smollm2",
        "",
        [Check("openai", "talking", True, "hi"), Check("openai", "tools", True, "a tool")],
        path,
    )
    _keep("lm-eval", "smollm2", "", [Check("lm-eval", "counting", False, "3 | 4")], path)
    lines = clients(read(path)).splitlines()
    assert lines[2:] == ["| openai 3.51.0 | 2 of 2 |", "| lm-eval 0.4.13 | 0 of 1; **failed**: counting |"]


def test_a_client_that_is_run_again_replaces_its_checks(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    _keep("openai", "smollm2", "", [Check("openai", "talking", False, "silence")], path)
    before = read(path)
    _keep("openai", "smollm2", "", [Check("openai", "talking", True, "hi")], path)
    again = [row | {"run": row["run"] + "later"} if row not in before else row for row in read(path)]
    assert "1 of 1 |" in clients(latest(again))


def test_every_client_has_been_run() -> None:
    assert {one["client"] for one in figures(latest(read()), "clients")} == set(CLIENTS)
