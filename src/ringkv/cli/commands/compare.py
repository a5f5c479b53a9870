"""ringkv compare: one question about a document, answered with a full cache and with smaller ones, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ringkv.base.budgets import check_budget, min_budget
from ringkv.base.checks import check, one_of
from ringkv.base.errors import EmptyPrompt
from ringkv.base.kv import POLICIES, KVChoice
from ringkv.base.sampling import SamplingParams
from ringkv.cli.answering import TimedResult, follow, live
from ringkv.cli.options import ANSWERING_MODEL, SAMPLING, AsJson, ComparisonOptions, ModelName, option
from ringkv.cli.output import console, print_json, print_table
from ringkv.cli.prompts import read_prompt, stream_answer
from ringkv.evaluation.cells import FULL, Cell, crossed
from ringkv.llm.show_progress import show_progress
from ringkv.plan.choose_kv import settings
from ringkv.plan.options import AUTO, Options
from ringkv.plan.units import show_bytes

if TYPE_CHECKING:
    from ringkv.llm.llm import LLM

COMPARED = tuple(policy for policy in POLICIES if policy != "scissorhands")  # which needs slots of its own
_caches = partial(option, "Caches", show_default=True)


@dataclass(frozen=True)
class CacheOptions:
    policies: Annotated[str, _caches("--policies", "NAMES", f"Policies to compare, of {', '.join(COMPARED)}.")] = (
        "full,snapstream"
    )
    budgets: Annotated[
        str,
        _caches(
            "--budgets", "LIST", "Budgets of each policy: shares of the prompt, such as 4x for a quarter, or entries."
        ),
    ] = "2x,4x,8x,16x"

    def cells(self, options: Options) -> list[Cell]:
        """Return the caches to compare. Raises InvalidRequest for a policy, a budget or a setting that is invalid."""
        policies = self.policies.split(",")
        check([one_of("--policies", policy, COMPARED) for policy in policies])
        cells = crossed(policies, self.budgets.split(","), settings(options))
        for cell in cells:
            if cell.budget is not None and cell.budget.isdecimal():
                check_budget(cell.choice, int(cell.budget))
        return cells


@dataclass(frozen=True)
class CacheAnswer:
    """The answer under one cache.

    kept: of the prompt's tokens. entries, bytes: held at the end of the answer. first_token_s: seconds from the request
    to the first token; the prompt's prefill counts for the first cache alone.
    """

    cache: str
    kept: int
    entries: int
    bytes: int
    first_token_s: float
    text: str
    finish_reason: str


def compare(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A UTF-8 text file with the document; - reads stdin.")],
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question, put after the document.")],
    *,
    model: ModelName = ANSWERING_MODEL,
    caches: CacheOptions,
    engine: ComparisonOptions,
    max_tokens: Annotated[
        int, option(SAMPLING, "--max-tokens", "N", "Maximum tokens of each answer.", show_default=True)
    ] = 64,
    as_json: AsJson = False,
) -> None:
    """Answer a question about a document with a full cache and with smaller ones, side by side.

    The document is prefilled once, which takes most of the time. Each cache then keeps its share of it and answers
    greedily. The prompt's last tokens, the question's, select what is kept.

        ringkv compare LICENSE "What may I do with the source?"
        ringkv compare report.txt "What did it cost?" --budgets 2048,1024,512 --policies full,streaming,snapstream
    """
    cells, sampling = caches.cells(engine), SamplingParams(max_tokens)
    if not question.strip():
        raise EmptyPrompt("the question is empty; write it after the file")
    prompt = read_prompt(question, None, file)
    llm = load(model, engine, cells, sampling)
    prompt_tokens, answers = answer_each(llm, prompt, cells, sampling)
    if as_json:
        print_json({"model": model, "question": question, "prompt_tokens": prompt_tokens, "caches": answers})
    else:
        print_answers(f"{question} ({prompt_tokens:,} prompt tokens, {model})", answers)


def load(model: str, options: Options, cells: Sequence[Cell], sampling: SamplingParams) -> "LLM":
    """Load a model whose slots hold all of a prompt and its answer, and which prefills a prompt once for all caches."""
    from ringkv.llm.llm import LLM

    policy = "arkvale" if any(cell.choice.reads_pages for cell in cells) else FULL
    options = replace(options.compiling_behind, kv_policy=policy, output_tokens=sampling.max_tokens, prefix_store=AUTO)
    with show_progress() as progress:
        return LLM(model, on_progress=progress, **vars(options))


def answer_each(
    llm: "LLM", prompt: str, cells: Sequence[Cell], sampling: SamplingParams
) -> tuple[int, list[CacheAnswer]]:
    """Return the prompt's tokens, and the answer under each cache in turn. Raises PromptTooLong."""
    from ringkv.text.chat_template import ChatTemplate

    messages = [{"role": "user", "content": prompt}]
    has_template = ChatTemplate.find(llm.config.model_dir) is not None
    tokens = len(llm.encode_chat(messages) if has_template else llm.tokenizer.encode(prompt))
    answers = list[CacheAnswer]()
    with show_progress() as progress:
        for cell in cells:
            report = partial(progress, what=f"answering with {cell.label}" if answers else "prefilling the document")
            report(0, 0)
            pieces = stream_answer(llm, prompt, None, False, sampling, report, _choice(llm, cell, tokens))
            answers.append(_answer(cell, follow(pieces, lambda _: None), llm.limits.entry_bytes))
    return tokens, answers


def _choice(llm: "LLM", cell: Cell, prompt: int) -> KVChoice:
    """Return the choice for a prompt of so many tokens. Policy full has the whole slot.

    A share of a short prompt is raised to the fewest entries that the policy accepts.
    """
    if cell.budget is None:
        return cell.choice
    budget = max(cell.entries(prompt, 0), min_budget(cell.choice))
    return replace(cell.choice, budget=min(budget, llm.limits.capacity))


def _answer(cell: Cell, timed: TimedResult, entry_bytes: int) -> CacheAnswer:
    result = timed.result
    entries, text = live(result.usage), " ".join(result.text.split())
    held = entries * entry_bytes
    return CacheAnswer(cell.label, result.usage.kv.kept, entries, held, timed.first_token_s, text, result.finish_reason)


def print_answers(title: str, answers: Sequence[CacheAnswer]) -> None:
    """Print a table with a row for each cache."""
    rows = [
        (each.cache, f"{each.kept:,}", show_bytes(each.bytes), f"{each.first_token_s:.2f} s", each.text)
        for each in answers
    ]
    console().print(title, style="bold", soft_wrap=True)
    print_table(("cache", "kept ", "bytes held ", "first token ", "answer"), rows)
    console().print()
