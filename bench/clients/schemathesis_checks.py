"""Schemathesis: requests made from our OpenAPI document, right ones and wrong ones, and what they are answered."""

import re
from collections.abc import Iterator

from bench.clients.check import Check
from bench.clients.surroundings import Server, client

KEPT = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
)
EXAMPLES, FUZZING, SECONDS = 40, 120, 540
# A document may ask for 128 answers of any length; the client then hangs up, which is its right.
PATIENCE = 20


def checks(server: Server) -> Iterator[Check]:
    words = ["schemathesis", "run", f"{server.url}/openapi.json", "--checks", ",".join(KEPT)]
    words += ["--phases", "examples,coverage,fuzzing", "--max-examples", str(EXAMPLES), "--continue-on-failure"]
    words += ["--request-timeout", str(PATIENCE), "--max-time", str(FUZZING), "--seed", "1"]
    ran = client(words, seconds=SECONDS)
    made = re.search(r"(\d[\d,]*) generated", ran.output)
    yield Check("schemathesis", "no 5xx, nothing beside the document", ran.code == 0, made[0] if made else ran.last)
