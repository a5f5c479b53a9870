"""ringkv demo: three facts hidden in a document, retrieved with a full cache and two much smaller ones."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

from rich.console import Console

from ringkv.base.kv import KVChoice
from ringkv.base.progress import Progress
from ringkv.base.sampling import SamplingParams
from ringkv.cli.answering import live
from ringkv.cli.options import MODEL, MODEL_NAME, EngineOptions, ModelName, option
from ringkv.cli.output import console
from ringkv.llm.show_progress import show_progress
from ringkv.plan.choose_kv import choose_kv
from ringkv.plan.options import AUTO
from ringkv.plan.units import show_bytes

if TYPE_CHECKING:
    from ringkv.llm.llm import LLM
    from ringkv.llm.result import Result

BUDGET = 512
TOKENS = 2300  # with the full cache the default model finds all facts at this length, but not at 4,000
SAMPLING = SamplingParams(max_tokens=24)


class Needle(NamedTuple):
    """A fact to hide in a long document, and a question about it."""

    name: str
    value: str

    @property
    def sentence(self) -> str:
        return f"The secret {self.name} of this document is {self.value}."

    @property
    def question(self) -> str:
        return f"What is the secret {self.name} of this document?"

    def hidden_in(self, document: str) -> str:
        """Return the document with the sentence inserted as a paragraph after two thirds of it."""
        paragraphs = document.split("\n\n")
        paragraphs.insert(2 * len(paragraphs) // 3, self.sentence)
        return "\n\n".join(paragraphs)

    def is_in(self, answer: str) -> bool:
        """Return whether the answer contains the value as a whole word."""
        return re.search(rf"\b{re.escape(self.value)}\b", answer, re.IGNORECASE) is not None


NEEDLES = (Needle("word", "pineapple"), Needle("number", "7294"), Needle("city", "Lisbon"))
"""The first three that were tried, including one that a small cache missed."""


def demo(
    *,
    model: ModelName = MODEL_NAME,
    tokens: Annotated[int, option(MODEL, "--tokens", "N", "Length of the document.", show_default=True)] = TOKENS,
    engine: EngineOptions,
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
    from ringkv.llm.llm import LLM

    options = engine.filled(kv_budget=BUDGET) if engine.kv_compression is None else engine
    # The slots hold the whole document, and with the prefix store it is prefilled once.
    full = replace(options, kv_policy="full", kv_budget=None, kv_compression=None, prefix_store=AUTO)
    with show_progress() as progress:
        llm = LLM(model, on_progress=progress, **vars(full))
    out, document = console(), _document(llm, tokens)
    length = len(llm.tokenizer.encode(document))
    chosen = choose_kv(options, length, llm.limits.context)
    compared = (replace(chosen, policy="full", budget=None), replace(chosen, policy="streaming"), chosen)
    choices = {choice.policy: choice for choice in compared}
    out.print(
        f"model      {model}\n"
        f"document   {length:,} tokens of Python's manual, with one of {len(NEEDLES)} facts hidden in it",
        soft_wrap=True,
    )
    hits = dict.fromkeys(choices, 0)
    for needle in NEEDLES:
        results = _answers(llm, out, document, needle, choices)
        for policy, result in results.items():
            hits[policy] += needle.is_in(result.text)
    out.print("\nfound: " + ", ".join(f"{policy} {count} of {len(NEEDLES)}" for policy, count in hits.items()))
    out.print(_contrast(results, llm.limits.entry_bytes), soft_wrap=True)


def _document(llm: "LLM", tokens: int) -> str:
    """Return a document of at most `tokens`, less if a question and an answer would not fit."""
    from ringkv.cli.document import manual

    longest = min(llm.limits.prompt_tokens, llm.limits.context - SAMPLING.max_tokens) - 100  # the chat template
    return manual(min(tokens, longest), lambda text: len(llm.tokenizer.encode(text)))


def _answers(
    llm: "LLM", out: Console, document: str, needle: Needle, choices: Mapping[str, KVChoice]
) -> "dict[str, Result]":
    """Return the answers to one question by policy, and print each as soon as it is complete."""
    out.print(f"\n{needle.question}", style="bold", soft_wrap=True)
    messages = [{"role": "user", "content": f"{needle.hidden_in(document)}\n\n{needle.question}"}]
    results = {}
    for policy, choice in choices.items():
        with show_progress() as progress:
            report = partial(_report, progress)
            *_, last = llm.stream_chat(messages, SAMPLING, kv=choice, on_prefill=report)
        assert last.result is not None, "an answer ends with its result"
        result = results[policy] = last.result
        verdict = "found " if needle.is_in(result.text) else "missed"
        answer = " ".join(result.text.split())
        out.print(f"  {policy:10}  {live(result.usage):>6,} entries  {verdict}  {answer}", soft_wrap=True)
    return results


def _report(progress: Progress, done: int, total: int) -> None:
    progress(done, total, "prefilling the document")


def _contrast(results: "Mapping[str, Result]", entry_bytes: int) -> str:
    """Compare the caches' sizes after the last answers."""
    full, *_, small = (live(result.usage) for result in results.values())
    return (
        f"The full cache used {full:,} entries, {show_bytes(full * entry_bytes)}, and grows with every token. "
        f"The others used {small:,}, {show_bytes(small * entry_bytes)} ({full / small:.1f} times less), "
        "and never use more."
    )
