"""Writing: short prompts with long answers that wrap the ring: word problems, olympiad problems, programs.

Sources: GSM8K (arXiv 2110.14168), AIME 2024, HumanEval (arXiv 2107.03374), LeetCode's contests as collected
for DeepSeek-Coder (arXiv 2401.14196). Prompts have no examples and use the chat template.
"""

from collections.abc import Iterator
from typing import Any

from ringkv.evaluation.sample import Answer, Sample
from ringkv.evaluation.scores.code import solves
from ringkv.evaluation.tasks.source import Source


def gsm8k(source: Source) -> Iterator[Sample]:
    for place, line in _first(source, "math", "gsm8k_test.jsonl"):
        yield Sample(
            name=str(place),
            context=f"{line['question']}\n\nThink step by step, and end with the number alone on a line.",
            references=(line["answer"].rpartition("####")[2].strip(),),
            answer_tokens=512,
        )


def aime24(source: Source) -> Iterator[Sample]:
    for _, line in _first(source, "math", "aime24_test.jsonl"):
        yield Sample(
            name=str(line["id"]),
            context=f"{line['problem']}\n\nThink step by step, and put the final answer into \\boxed{{}}.",
            references=(str(line["answer"]),),
            answer_tokens=4096,
        )


def humaneval(source: Source) -> Iterator[Sample]:
    for _, line in _first(source, "code", "HumanEval.jsonl"):
        yield Sample(
            name=line["task_id"].rpartition("/")[2],
            context="Complete this Python function. Answer with the whole of it in one block of code.\n\n"
            f"```python\n{line['prompt']}```",
            references=(line["prompt"], f"{line['test']}\ncheck({line['entry_point']})"),
            answer_tokens=512,
        )


def leetcode(source: Source) -> Iterator[Sample]:
    for _, line in _first(source, "code", "leetcode_contest_2023-07_2024-01.jsonl"):
        yield Sample(
            name=line["task_id"],
            context=line["prompt_sft"],
            references=("class Solution", line["test"]),
            answer_tokens=1024,
            facts={"difficulty": line["meta"]["difficulty"]},
        )


def runs(answer: Answer, sample: Sample) -> float:
    """Score a program. The references are the code before the answer, and the test."""
    given, test = sample.references
    return solves(answer.text, given, test)


def _first(source: Source, *names: str) -> Iterator[tuple[int, dict[str, Any]]]:
    return zip(range(source.count), source.lines(*names), strict=False)
