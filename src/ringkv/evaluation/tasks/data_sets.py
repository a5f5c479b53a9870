"""Tasks over published data sets, with the prompts of the data folder where it has some.

Documents: LongBench (arXiv 2308.14508), also for answer lengths, scores and the tasks without a chat template,
LongBench-v2 (arXiv 2412.15204), LongEval's topics (LongChat, 2023). Long answers that wrap the ring: GSM8K (arXiv
2110.14168), AIME 2024, HumanEval (arXiv 2107.03374), LeetCode's contests as collected for DeepSeek-Coder (arXiv
2401.14196), all without examples. Perplexity: WikiText-2.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from ringkv.evaluation.sample import Answer, Sample, Score, of_text
from ringkv.evaluation.sandbox import solves
from ringkv.evaluation.scores import (
    class_named,
    edit_similarity,
    f1,
    first_line,
    numbers_right,
    paragraph_right,
    rouge_l,
)
from ringkv.evaluation.tasks.source import Source


class LongBenchTask(NamedTuple):
    """is_chat: False for few-shot examples and code, which a chat template would break."""

    score: Score
    answer_tokens: int
    is_chat: bool = True


def _of_line(score: Callable[[str, Sequence[str]], float]) -> Score:
    """Score the first line only, because models continue with examples of their own."""
    return lambda answer, sample: score(first_line(answer.text), sample.references)


def _class(answer: Answer, sample: Sample) -> float:
    return class_named(first_line(answer.text), sample.references, sample.choices)


LONGBENCH: Mapping[str, LongBenchTask] = {
    "narrativeqa": LongBenchTask(of_text(f1), 128),
    "qasper": LongBenchTask(of_text(f1), 128),
    "multifieldqa_en": LongBenchTask(of_text(f1), 64),
    "hotpotqa": LongBenchTask(of_text(f1), 32),
    "2wikimqa": LongBenchTask(of_text(f1), 32),
    "musique": LongBenchTask(of_text(f1), 32),
    "gov_report": LongBenchTask(of_text(rouge_l), 512),
    "qmsum": LongBenchTask(of_text(rouge_l), 512),
    "multi_news": LongBenchTask(of_text(rouge_l), 512),
    "trec": LongBenchTask(_class, 64, is_chat=False),
    "triviaqa": LongBenchTask(_of_line(f1), 32, is_chat=False),
    "samsum": LongBenchTask(_of_line(rouge_l), 128, is_chat=False),
    "passage_count": LongBenchTask(of_text(numbers_right), 32),
    "passage_retrieval_en": LongBenchTask(of_text(paragraph_right), 32),
    "lcc": LongBenchTask(of_text(edit_similarity), 64, is_chat=False),
    "repobench-p": LongBenchTask(of_text(edit_similarity), 64, is_chat=False),
}


def longbench(name: str, source: Source) -> Iterator[Sample]:
    task = LONGBENCH[name]
    for line in _first(source, "longbench", f"{name}.jsonl"):
        yield Sample(
            name=str(line["idx"]),
            context=line["prompt"],
            references=tuple(line["answers"]),
            choices=tuple(line.get("all_classes") or ()),
            answer_tokens=task.answer_tokens,
            is_chat=task.is_chat,
        )


def longbench_v2(source: Source) -> Iterator[Sample]:
    """Yield the first `source.count` samples that fit in the longest length."""
    fitting = (one for one in _choices(source) if source.count_tokens(one) + one.answer_tokens <= source.longest)
    return islice(fitting, source.count)


def _choices(source: Source) -> Iterator[Sample]:
    before, after = source.text("longbench_v2", "prompts", "0shot.txt").split("$DOC$")
    for line in source.lines("longbench_v2", "short_le30k.jsonl"):
        question = after.replace("$Q$", line["question"].strip())
        for letter in "ABCD":
            question = question.replace(f"$C_{letter}$", line[f"choice_{letter}"].strip())
        yield Sample(
            name=line["_id"],
            context=before + line["context"].strip(),
            question=question,
            references=(line["answer"],),
            facts={"difficulty": line["difficulty"], "domain": line["domain"]},
        )


def longeval(source: Source) -> Iterator[Sample]:
    """Yield `source.count` samples for each number of topics. The question is about the first topic."""
    for topics in (5, 10, 15):
        for line in _first(source, "longeval", f"{topics}_topics.jsonl"):
            yield Sample(
                name=f"{topics}/{line['test_id']}",
                context=line["prompt"],
                references=(line["topics"][0],),
                answer_tokens=64,
                facts={"topics": topics},
            )


def gsm8k(source: Source) -> Iterator[Sample]:
    for place, line in enumerate(_first(source, "math", "gsm8k_test.jsonl")):
        yield Sample(
            name=str(place),
            context=f"{line['question']}\n\nThink step by step, and end with the number alone on a line.",
            references=(line["answer"].rpartition("####")[2].strip(),),
            answer_tokens=512,
        )


def aime24(source: Source) -> Iterator[Sample]:
    for line in _first(source, "math", "aime24_test.jsonl"):
        yield Sample(
            name=str(line["id"]),
            context=f"{line['problem']}\n\nThink step by step, and put the final answer into \\boxed{{}}.",
            references=(str(line["answer"]),),
            answer_tokens=4096,
        )


def humaneval(source: Source) -> Iterator[Sample]:
    for line in _first(source, "code", "HumanEval.jsonl"):
        yield Sample(
            name=line["task_id"].rpartition("/")[2],
            context="Complete this Python function. Answer with the whole of it in one block of code.\n\n"
            f"```python\n{line['prompt']}```",
            references=(line["prompt"], f"{line['test']}\ncheck({line['entry_point']})"),
            answer_tokens=512,
        )


def leetcode(source: Source) -> Iterator[Sample]:
    for line in _first(source, "code", "leetcode_contest_2023-07_2024-01.jsonl"):
        yield Sample(
            name=line["task_id"],
            context=line["prompt_sft"],
            references=("class Solution", line["test"]),
            answer_tokens=1024,
            facts={"difficulty": line["meta"]["difficulty"]},
        )


def runs(answer: Answer, sample: Sample) -> float:
    """Score a program. The references are the code before the answer, and the test."""
    return solves(answer.text, *sample.references)


def _first(source: Source, *names: str) -> Iterator[dict[str, Any]]:
    return islice(source.lines(*names), source.count)


FOLLOWING = 256  # tokens of a passage that are scored, approximately
SPARE = 16  # tokens of margin, because a passage ends at a word


def wikitext(source: Source) -> Iterator[Sample]:
    """Yield `source.count` consecutive passages for each length, wrapping to the text's start at its end.

    The perplexity of a prompt does not depend on the cache, because it is computed before eviction. So a prefix is
    prefilled and compressed, and the tokens that follow are fed one at a time through decode steps, and scored.
    """
    text = source.text("text", "wikitext-2_test.txt")
    start = 0
    for length in source.lengths:
        for place in range(source.count):
            before = _passage(source, text, start, length - FOLLOWING - SPARE)
            after = _passage(source, text, start + before, FOLLOWING)
            if start + before + after >= len(text):
                start, before = 0, _passage(source, text, 0, length - FOLLOWING - SPARE)
                after = _passage(source, text, before, FOLLOWING)
            yield Sample(
                name=f"{length}/{place}",
                context=text[start : start + before],
                question=text[start + before : start + before + after],
                answer_tokens=0,
                is_chat=False,
                facts={"length": length},
            )
            start += before + after


def _passage(source: Source, text: str, start: int, tokens: int) -> int:
    """Return the number of characters from `start` that have about this many tokens, up to the end of a word."""
    guess = 4 * tokens
    for _ in range(4):
        counted = source.count_tokens(Sample(text[start : start + guess], is_chat=False))
        guess = max(1, round(guess * tokens / max(1, counted)))
    space = text.find(" ", start + guess)
    return (space if space > 0 else len(text)) - start
