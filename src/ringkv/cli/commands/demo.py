"""ringkv demo: three facts hidden in a document, retrieved with a full cache and two much smaller ones."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ringkv.base.kv import KVChoice
from ringkv.base.progress import Progress
from ringkv.base.sampling import SamplingParams
from ringkv.cli.answering import live
from ringkv.cli.loading import load
from ringkv.cli.needles import NEEDLES, Needle
from ringkv.cli.options import MODEL, MODEL_NAME, EngineOptions, ModelName
from ringkv.cli.output import console
from ringkv.llm.show_progress import show_progress
from ringkv.plan.choose_kv import choose_kv
from ringkv.plan.options import AUTO, Options
from ringkv.plan.units import show_bytes

if TYPE_CHECKING:
    from ringkv.llm.llm import LLM
    from ringkv.llm.result import Result

BUDGET = 512
TOKENS = 2300  # with the full cache the default model finds all facts at this length, but not at 4,000
SAMPLING = SamplingParams(max_tokens=24)
Hits = dict[str, list[bool]]
"""Policy to whether each needle was found."""


def demo(
    *,
    model: ModelName = MODEL_NAME,
    engine: EngineOptions,
    tokens: Annotated[
        int, typer.Option("--tokens", metavar="N", help="Length of the document.", rich_help_panel=MODEL)
    ] = TOKENS,
) -> None:
    """Hide facts in a long document and count how many of them each of three caches retrieves.

    The document is part of Python's manual. The three caches are the full cache, the newest tokens only (streaming) and
    as many tokens selected by attention (snapstream). Misses are shown too. Three facts are only an illustration; to
    measure, use `ringkv eval`. The first run downloads the default model (93 MB) and compiles its graphs; both are
    cached.

        ringkv demo
        ringkv demo --kv-budget 1024
        ringkv demo qwen2.5-coder-1.5b --tokens 12000 --kv-budget 2048
    """
    options = engine.filled(kv_budget=BUDGET) if engine.kv_compression is None else engine
    with show_progress() as progress:
        llm = _load(model, options, progress)
    out, document = console(), _document(llm, tokens)
    length = len(llm.tokenizer.encode(document))
    choices = _choices(options, length, llm.limits.context)
    out.print(
        f"model      {model}\n"
        f"document   {length:,} tokens of Python's manual, with one of {len(NEEDLES)} facts hidden in it",
        soft_wrap=True,
    )
    found: Hits = {policy: [] for policy in choices}
    for needle in NEEDLES:
        results = _answers(llm, out, document, needle, choices)
        for policy, result in results.items():
            found[policy].append(needle.is_in(result.text))
    out.print(_counts(found), soft_wrap=True)
    out.print(_contrast(results, llm.limits.entry_bytes), soft_wrap=True)


def _load(model: str, options: Options, progress: Progress) -> "LLM":
    """Load the model with slots for the whole document, and a prefix store, so that it is prefilled once."""
    whole = replace(options, kv_policy="full", kv_budget=None, kv_compression=None, prefix_store=AUTO)
    return load(model, whole, progress)


def _choices(options: Options, tokens: int, context: int) -> Mapping[str, KVChoice]:
    """Return the caches to compare by policy: the full one, and two with the requested budget."""
    chosen = choose_kv(options, tokens, context)
    compared = (replace(chosen, policy="full", budget=None), replace(chosen, policy="streaming"), chosen)
    return {choice.policy: choice for choice in compared}


def _document(llm: "LLM", tokens: int) -> str:
    """Return a document of at most `tokens`, less if a question and an answer would not fit."""
    from ringkv.cli.document import manual

    def count(text: str) -> int:
        return len(llm.tokenizer.encode(text))

    longest = min(llm.limits.prompt_tokens, llm.limits.context - SAMPLING.max_tokens) - 100  # the chat template
    return manual(min(tokens, longest), count)


def _answers(
    llm: "LLM", out: Console, document: str, needle: Needle, choices: Mapping[str, KVChoice]
) -> "dict[str, Result]":
    """Return the answers to one question by policy, and print each as soon as it is complete."""
    out.print(f"\n{needle.question}", style="bold", soft_wrap=True)
    results = {}
    for policy, choice in choices.items():
        result = results[policy] = _answer(llm, f"{needle.hidden_in(document)}\n\n{needle.question}", choice)
        verdict = "found " if needle.is_in(result.text) else "missed"
        answer = " ".join(result.text.split())
        out.print(f"  {policy:10}  {live(result.usage):>6,} entries  {verdict}  {answer}", soft_wrap=True)
    return results


def _answer(llm: "LLM", prompt: str, choice: KVChoice) -> "Result":
    messages = [{"role": "user", "content": prompt}]
    with show_progress() as progress:
        pieces = llm.stream_chat(
            messages,
            SAMPLING,
            kv=choice,
            on_prefill=lambda done, total: progress(done, total, "prefilling the document"),
        )
        *_, last = pieces
    assert last.result is not None, "an answer ends with its result"
    return last.result


def _counts(found: Hits) -> str:
    return "\nfound: " + ", ".join(f"{policy} {sum(hits)} of {len(hits)}" for policy, hits in found.items())


def _contrast(results: "Mapping[str, Result]", entry_bytes: int) -> str:
    """Compare the caches' sizes after the last answers."""
    full, *_, small = (live(result.usage) for result in results.values())
    return (
        f"The full cache used {full:,} entries, {show_bytes(full * entry_bytes)}, and grows with every token. "
        f"The others used {small:,}, {show_bytes(small * entry_bytes)} ({full / small:.1f} times less), "
        "and never use more."
    )
