"""Fixtures of the server's tests, for benchmarks of a server."""

from tests.server.conftest import fresh, model_dir, served, slow, tokenizer  # noqa: F401
