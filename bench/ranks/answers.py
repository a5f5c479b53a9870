"""answers: the greedy answers of two ranks beside those of one process."""

from collections.abc import Sequence
from itertools import takewhile
from multiprocessing.connection import Connection
from operator import eq

from bench.data import REPOSITORY
from bench.ranks.child import THREADS, Child
from bench.results import Figure, table

PAGES = ("architecture", "distributed", "models", "serving")  # of our documentation, whose beginnings are the prompts
PROMPT, TOKENS, BUDGET = 900, 96, 512
DTYPES = ("float32", "bfloat16")


def answers(model: str, dtype: str) -> Figure:
    """Compare answers in a dtype. Sums of ranks are rounded differently, so near ties may be decided differently."""
    one, two = (_given(model, dtype, ranks) for ranks in (1, THREADS))
    until = [_equal(*both) for both in zip(one, two, strict=True)]
    return {
        "part": "answers",
        "model": model,
        "dtype": dtype,
        "answers": len(one),
        "equal_answers": sum(length == TOKENS for length in until),
        "tokens": TOKENS * len(one),
        "equal_tokens": sum(until),
    }


def _equal(one: Sequence[int], two: Sequence[int]) -> int:
    """Count the tokens before the first that differs."""
    return sum(takewhile(bool, map(eq, one, two)))


def _given(model: str, dtype: str, ranks: int) -> list[list[int]]:
    child = Child(_answer, model, dtype, ranks)
    tokens = [int(token) for token in child.run()]
    child.close()
    return [tokens[at : at + TOKENS] for at in range(0, len(tokens), TOKENS)]


def _answer(connection: Connection, model: str, dtype: str, ranks: int) -> None:
    """Send the tokens of all answers, one after the other."""
    from ringkv import LLM, SamplingParams

    llm = LLM(
        model,
        dtype=dtype,
        slots=len(PAGES),
        prompt_tokens=1024,
        kv_budget=BUDGET,
        graphs="off",
        tensor_parallel=ranks,
        threads=THREADS // ranks,
    )
    prompts = [
        llm.tokenizer.encode((REPOSITORY / "docs" / f"{page}.md").read_text(encoding="utf-8"))[:PROMPT]
        for page in PAGES
    ]
    connection.send([])
    connection.recv_bytes()
    greedy = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    found = llm.generate(prompts, greedy, progress=False)
    connection.send([token for result in found for token in result.token_ids])


def answers_table(figures: Sequence[Figure]) -> str:
    rows = [
        (
            one["model"],
            one["dtype"],
            f"{one['equal_answers']} of {one['answers']}",
            f"{one['equal_tokens']} of {one['tokens']}",
        )
        for one in figures
    ]
    return table(("model", "dtype", "equal answers", "tokens before the first other one"), rows)
