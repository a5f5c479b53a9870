"""ringkv demo: three facts hidden in a document, retrieved with a full cache and two much smaller ones."""

import re
from collections import Counter
from typing import TYPE_CHECKING, Annotated, NamedTuple

from ringkv.base.sampling import SamplingParams
from ringkv.cli.commands.compare import CacheOptions, answer_each, load, print_answers
from ringkv.cli.options import MODEL, MODEL_NAME, ComparisonOptions, ModelName, option
from ringkv.cli.output import console

if TYPE_CHECKING:
    from ringkv.llm.llm import LLM

TOKENS = 2300  # with the full cache the default model finds all facts at this length, but not at 4,000
CACHES = CacheOptions("full,streaming,snapstream", "4x")
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
    tokens: Annotated[
        int, option(MODEL, "--tokens", "N", "Length of the document.", show_default=True, min=1)
    ] = TOKENS,
    engine: ComparisonOptions,
) -> None:
    """Hide facts in a long document and count how many of them each of three caches retrieves.

    The document is part of Python's manual. The three caches are the full cache, a quarter of the prompt as its newest
    tokens only (streaming) and a quarter selected by attention (snapstream). Misses are shown too. Three facts are only
    an illustration; to try other caches on your own document, use `ringkv compare`, and to measure, `ringkv eval`. The
    first run downloads the default model (93 MB) and compiles its graphs; both are cached.

        ringkv demo
        ringkv demo qwen2.5-coder-1.5b --tokens 12000
    """
    cells = CACHES.cells(engine)
    llm = load(model, engine, cells, SAMPLING)
    out, document, hits = console(), _document(llm, tokens), Counter(dict.fromkeys((cell.label for cell in cells), 0))
    out.print(f"Python's manual, with one of {len(NEEDLES)} facts hidden in it, read by {model}\n", soft_wrap=True)
    for needle in NEEDLES:
        prompt = f"{needle.hidden_in(document)}\n\n{needle.question}"
        prompt_tokens, answers = answer_each(llm, prompt, cells, SAMPLING)
        print_answers(f"{needle.question} ({prompt_tokens:,} prompt tokens)", answers)
        hits.update(answer.cache for answer in answers if needle.is_in(answer.text))
    out.print("found: " + ", ".join(f"{cache} {count} of {len(NEEDLES)}" for cache, count in hits.items()))


def _document(llm: "LLM", tokens: int) -> str:
    """Return a document of at most `tokens`, less if a question and an answer would not fit."""
    from ringkv.cli.document import manual

    longest = min(llm.limits.prompt_tokens, llm.limits.context - SAMPLING.max_tokens) - 100  # the chat template
    return manual(min(tokens, longest), lambda text: len(llm.tokenizer.encode(text)))
