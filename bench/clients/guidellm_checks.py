"""guidellm_checks: GuideLLM with a sweep, several streams, and a trace replay."""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.clients.check import Check
from bench.clients.surroundings import Server, client

SHAPE = "kind=synthetic_text,prompt_tokens=128,output_tokens=32"
REPLAYED = 12  # requests of the trace, at ten times its speed


def checks(server: Server, trace: Path) -> Iterator[Check]:
    """Run the checks. trace: a JSONL file of requests with arrival times in milliseconds and lengths."""
    with TemporaryDirectory() as folder:
        rows = [json.loads(line) for line in trace.read_text().splitlines()[:REPLAYED]]
        seconds = [{**row, "timestamp": row["timestamp"] / 1000} for row in rows]
        trace = Path(folder) / "trace.jsonl"
        trace.write_text("".join(json.dumps(row) + "\n" for row in seconds))
        replayed = f"kind=trace_synthetic,source.kind=json_file,source.path={trace}"
        few, some = "kind=max_requests,count=8", "kind=max_duration,seconds=10"
        yield _run(server, Path(folder), "sweep", "kind=sweep,sweep_size=3", SHAPE, some)
        yield _run(server, Path(folder), "4 streams", "kind=concurrent,streams=4", SHAPE, few)
        yield _run(server, Path(folder), "trace replay", "kind=replay,time_scale=0.1", replayed, "")


def _run(server: Server, folder: Path, what: str, profile: str, data: str, constraint: str) -> Check:
    report = folder / f"{what.replace(' ', '-')}.json"
    command = ["guidellm", "run", "--disable-console-interactive", "--profile", profile, "--data", data]
    command += ["--backend", f"kind=openai_http,target={server.url},model={server.model}"]
    command += ["--tokenizer", f"kind=hf_auto,model={server.tokenizer}", "--output", f"kind=json,path={report}"]
    ran = client([*command, *(["--constraint", constraint] if constraint else [])], seconds=300)
    if ran.code or not report.is_file():
        return Check("guidellm", what, False, ran.last)
    counts = [one["metrics"]["request_totals"] for one in json.loads(report.read_text())["benchmarks"]]
    done, failed = (sum(count[key] for count in counts) for key in ("successful", "errored"))
    return Check("guidellm", what, bool(done) and not failed, f"{done} requests, {failed} failed")
