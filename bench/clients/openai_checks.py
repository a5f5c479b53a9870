"""openai_checks: OpenAI's client."""

import json
from collections.abc import Iterator

from bench.clients.check import Check
from bench.clients.surroundings import Server, client


def checks(server: Server, script: str) -> Iterator[Check]:
    """Run a script of `with_openai` and yield its checks."""
    ran = client(["python", "-m", f"bench.clients.with_openai.{script}", server.url, server.model], seconds=600)
    lines = [json.loads(line) for line in ran.output.splitlines() if line.startswith("{")]
    if not lines:
        yield Check("openai", "all", False, ran.last)
    for line in lines:
        yield Check("openai", **line)
