"""schemathesis_checks: valid and invalid requests generated from our OpenAPI document, and their responses."""

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
# A generated request may want 128 answers of any length; the client then disconnects, which is not a failure.
REQUEST_TIMEOUT = 20  # seconds


def checks(server: Server) -> Iterator[Check]:
    command = ["schemathesis", "run", f"{server.url}/openapi.json", "--checks", ",".join(KEPT)]
    command += ["--phases", "examples,coverage,fuzzing", "--max-examples", str(EXAMPLES), "--continue-on-failure"]
    command += ["--request-timeout", str(REQUEST_TIMEOUT), "--max-time", str(FUZZING), "--seed", "1"]
    ran = client(command, seconds=SECONDS)
    made = re.search(r"(\d[\d,]*) generated", ran.output)
    yield Check("schemathesis", "no 5xx, nothing beside the document", ran.code == 0, made[0] if made else ran.last)
