"""NVIDIA's AIPerf: chats, completions and responses, streamed."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.clients.check import Check
from bench.clients.surroundings import Server, client

REQUESTS = 16
ONLINE: Mapping[str, str] = {}  # where it is told to stay offline it takes no directory for a tokenizer
SHAPE = ("--prompt-input-tokens-mean", "128", "--prompt-output-tokens-mean", "32", "--concurrency", "4")


def checks(server: Server) -> Iterator[Check]:
    for endpoint in ("chat", "completions", "responses"):
        yield _run(server, endpoint)


def _run(server: Server, endpoint: str) -> Check:
    what = f"profile, {endpoint}"
    with TemporaryDirectory() as folder:
        words = ["aiperf", "profile", "--url", server.url, "--model", server.model, "--endpoint-type", endpoint]
        words += ["--streaming", "--tokenizer", str(server.tokenizer), "--request-count", str(REQUESTS), *SHAPE]
        words += ["--ui", "none", "--output-artifact-dir", folder]
        ran = client(words, seconds=300, name="aiperf", environment=ONLINE)
        report = next(Path(folder).rglob("profile_export_aiperf.json"), None)
        if ran.code or report is None:
            return Check("aiperf", what, False, ran.last)
        said = json.loads(report.read_text())
    done, failed = (int((said.get(key) or {"avg": 0})["avg"]) for key in ("request_count", "error_request_count"))
    return Check("aiperf", what, done == REQUESTS and not failed, f"{done} requests, {failed} failed")
