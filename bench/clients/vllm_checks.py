"""vllm_checks: vLLM's own server benchmark."""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.clients.check import Check
from bench.clients.surroundings import Server, client
from bench.peers.install import REQUIREMENTS

PROMPTS = 16
SHAPE = ("--random-input-len", "128", "--random-output-len", "32", "--max-concurrency", "4")


def checks(server: Server) -> Iterator[Check]:
    yield _run(server, "bench serve, completions", "openai", "/v1/completions")
    yield _run(server, "bench serve, chats", "openai-chat", "/v1/chat/completions")


def _run(server: Server, what: str, backend: str, endpoint: str) -> Check:
    with TemporaryDirectory() as folder:
        command = [
            "python",
            "-m",
            "bench.clients.with_vllm",
            "--backend",
            backend,
            "--base-url",
            server.url,
            "--endpoint",
            endpoint,
        ]
        command += ["--model", server.model, "--tokenizer", str(server.tokenizer), "--num-prompts", str(PROMPTS)]
        command += ["--dataset-name", "random", *SHAPE, "--save-result", "--result-dir", folder]
        ran = client(command, seconds=300, name="vllm", requirements=REQUIREMENTS)
        report = next(Path(folder).glob("*.json"), None)
        if ran.code or report is None:
            return Check("vllm-cpu", what, False, ran.last)
        done = int(json.loads(report.read_text())["completed"])
    return Check("vllm-cpu", what, done == PROMPTS, f"{done} of {PROMPTS} requests")
