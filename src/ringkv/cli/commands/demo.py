"""ringkv demo: two questions about a long document, in a cache far smaller than the document."""

import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ringkv.base.events import Usage
from ringkv.base.sampling import SamplingParams
from ringkv.cli.loading import load
from ringkv.cli.options import MODEL, EngineOptions
from ringkv.cli.output import console
from ringkv.cli.views import Watched, view
from ringkv.llm.watching import watching
from ringkv.plan.units import show_bytes

if TYPE_CHECKING:
    from ringkv.llm.llm import LLM

BUDGET = 512
TOKENS = 7000
QUESTIONS = ("What is an exception in Python?", "How are exceptions handled in Python?")
# Not greedy, for a model this small says the same again and again; a seed, so that each run shows the same.
SAMPLING = SamplingParams(max_tokens=128, temperature=0.3, seed=1)


def demo(
    *,
    engine: EngineOptions,
    tokens: Annotated[
        int, typer.Option("--tokens", metavar="N", help="Length of the document.", rich_help_panel=MODEL)
    ] = TOKENS,
) -> None:
    """Ask a small model about a document many times longer than its cache, and watch what is kept and evicted.

    The document is a part of Python's own manual. The first run fetches the default model (93 MB) and compiles its
    graphs, which are kept.

        ringkv demo
        ringkv demo --kv-budget 256
        ringkv demo --model qwen2.5-coder-1.5b --tokens 12000 --kv-budget 2048
    """
    if engine.kv_budget is None and engine.kv_compression is None:
        engine = replace(engine, kv_budget=BUDGET)
    with watching() as tell:
        llm = load(engine, tell)
    out = console()
    document = _document(llm, tokens)
    for line in _introduction(engine.model, llm, document):
        out.print(line, soft_wrap=True)
    for question in QUESTIONS:
        usage = _ask(llm, out, document, question)
    out.print(_contrast(usage, llm.limits.entry_bytes), soft_wrap=True)


def _document(llm: "LLM", tokens: int) -> str:
    """As long as asked, or as fits with a question and an answer."""
    from ringkv.cli.document import manual

    room = min(llm.limits.prompt_tokens, llm.limits.context - SAMPLING.max_tokens) - 100  # the chat's own words
    return manual(min(tokens, room), lambda text: len(llm.tokenizer.encode(text)))


def _introduction(model: str, llm: "LLM", document: str) -> list[str]:
    held, length = llm.limits.capacity, len(llm.tokenizer.encode(document))
    return [
        f"model      {model}",
        f"document   {length:,} tokens of Python's own manual",
        f"cache      {held:,} entries a request, {show_bytes(held * llm.limits.entry_bytes)}: "
        f"{length / held:.1f} times smaller than the document",
    ]


def _ask(llm: "LLM", out: Console, document: str, question: str) -> Usage:
    """Stream one answer into its view; what the cache held at its end."""
    watched = Watched(question)
    messages = [{"role": "user", "content": f"{document}\n\n{question}"}]
    with view(out, question) as shown:

        def read(done: int, total: int) -> None:
            watched.done, watched.total = done, total
            shown.show(watched)

        pieces = llm.stream_chat(messages, SAMPLING, on_prefill=read)
        first = 0.0
        with closing(pieces):
            for count, piece in enumerate(pieces):
                now = time.perf_counter()
                first = first or now
                watched.rate = count / (now - first) if piece.token is not None and now > first else watched.rate
                watched.text, watched.usage = watched.text + piece.text, piece.usage
                shown.show(watched)
    assert watched.usage is not None
    return watched.usage


def _contrast(usage: Usage, entry_bytes: int) -> str:
    """What a full cache would have held."""
    seen = usage.prompt_tokens + usage.completion_tokens
    full = seen * entry_bytes
    return (
        f"\nA full cache would hold {seen:,} entries, {show_bytes(full)}, and grow with every token. This one held "
        f"{usage.kv.capacity:,}, {show_bytes(usage.kv.bytes_held)} ({full / usage.kv.bytes_held:.1f} times less), "
        "and never holds more."
    )
