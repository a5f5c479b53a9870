"""aiperf_checks: NVIDIA's AIPerf with streamed chats, completions and responses."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.clients.check import Check
from bench.clients.surroundings import Server, client

REQUESTS = 16
ONLINE: Mapping[str, str] = {}  # with the offline variables, AIPerf does not accept a tokenizer directory
SHAPE = ("--prompt-input-tokens-mean", "128", "--prompt-output-tokens-mean", "32", "--concurrency", "4")


def checks(server: Server) -> Iterator[Check]:
    for endpoint in ("chat", "completions", "responses"):
        yield _run(server, endpoint)


def _run(server: Server, endpoint: str) -> Check:
    what = f"profile, {endpoint}"
    with TemporaryDirectory() as folder:
        command = ["aiperf", "profile", "--url", server.url, "--model", server.model, "--endpoint-type", endpoint]
        command += ["--streaming", "--tokenizer", str(server.tokenizer), "--request-count", str(REQUESTS), *SHAPE]
        command += ["--ui", "none", "--output-artifact-dir", folder]
        ran = client(command, seconds=300, name="aiperf", environment=ONLINE)
        report = next(Path(folder).rglob("profile_export_aiperf.json"), None)
        if ran.code or report is None:
            return Check("aiperf", what, False, ran.last)
        figures = json.loads(report.read_text())
    done, failed = (int((figures.get(key) or {"avg": 0})["avg"]) for key in ("request_count", "error_request_count"))
    return Check("aiperf", what, done == REQUESTS and not failed, f"{done} requests, {failed} failed")
