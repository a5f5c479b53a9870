"""OpenAI's client."""

import json
from collections.abc import Iterator
from pathlib import Path

from bench.clients.check import Check
from bench.clients.surroundings import Server, client

SCRIPT = Path(__file__).parent / "with_openai.py"


def checks(server: Server) -> Iterator[Check]:
    ran = client([str(SCRIPT), server.url, server.model], seconds=600)
    lines = [json.loads(line) for line in ran.output.splitlines() if line.startswith("{")]
    if not lines:
        yield Check("openai", "all", False, ran.last)
    for line in lines:
        yield Check("openai", **line)
