"""Files for operators in examples/ agree with the server."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from ringkv.cli.application import app
from ringkv.server.main import DRAIN_SECONDS, FLUSH
from ringkv.worker.client import GRACE
from tests.server.conftest import Served

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples"
SERVE: Any = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
FLAGS = {flag for option in SERVE.params for flag in option.opts}
SUFFIXES = {"counter": [""], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}


@pytest.fixture
def exported(served: Served) -> set[str]:
    """The names of the server's samples. Its counters' types are declared under the full name."""
    kinds = re.findall(r"^# TYPE (\w+) (\w+)$", served.http.get("/metrics").text, re.MULTILINE)
    return {name + suffix for name, kind in kinds for suffix in SUFFIXES[kind]}


def queried(text: str) -> set[str]:
    return set(re.findall(r"\bringkv_\w+", text))


def test_every_metric_of_the_dashboard_exists(exported: set[str]) -> None:
    board = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(expressions) == len(re.findall('"expr"', json.dumps(board)))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    named = queried(" ".join(expressions))
    assert len(named) > 15
    assert named - exported == set()


def test_every_metric_of_the_alerts_exists_and_every_alert_is_explained(exported: set[str]) -> None:
    text = (EXAMPLES / "prometheus-alerts.yml").read_text()
    assert queried(text) - exported == set()
    alerts = re.findall(r"alert: (\w+)", text)
    explained = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "how-to" / "production.md").read_text(), re.MULTILINE)
    assert alerts == explained


def test_the_alerts_are_rules_of_prometheus() -> None:
    yaml = pytest.importorskip("yaml")
    (group,) = yaml.safe_load((EXAMPLES / "prometheus-alerts.yml").read_text())["groups"]
    for rule in group["rules"]:
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_the_configuration_has_options_that_exist() -> None:
    keys = tomllib.loads((EXAMPLES / "ringkv.toml").read_text())
    assert {f"--{key}" for key in keys} <= FLAGS


def test_the_image_copies_files_that_exist_and_runs_as_nobody_special() -> None:
    lines = (EXAMPLES / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    by_word: dict[str, list[list[str]]] = {}
    for line in lines:
        word, *others = line.split() or ["#"]
        by_word.setdefault(word, []).append(others)
    sources = [name for words in by_word["COPY"] for name in words[:-1]]
    assert {"src", "pyproject.toml", "README.md", "LICENSE"} <= set(sources)
    assert [name for name in sources if not (ROOT / name).exists()] == []
    assert by_word["USER"] == [["10001"]]
    assert lines.index("USER 10001") < next(n for n, line in enumerate(lines) if line.startswith("ENTRYPOINT"))
    assert "/ready" in " ".join(by_word["HEALTHCHECK"][0])
    variables = re.findall(r"RINGKV_SERVE_(\w+)", "\n".join(lines))
    assert {f"--{name.lower().replace('_', '-')}" for name in variables} <= FLAGS


def test_the_unit_waits_longer_than_the_server_drains() -> None:
    text = (EXAMPLES / "ringkv.service").read_text()
    seconds = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert seconds
    assert int(seconds[1]) > DRAIN_SECONDS + FLUSH + GRACE
    assert set(re.findall(r" (--[\w-]+)", re.findall(r"^ExecStart=(.*)", text, re.MULTILINE)[0])) <= FLAGS
    assert {"Restart=on-failure", "NoNewPrivileges=true", "SuccessExitStatus=143"} <= set(text.splitlines())
