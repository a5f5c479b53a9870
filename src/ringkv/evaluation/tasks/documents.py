"""Three tasks about one long text: multiple choice about a document, topics of a conversation, a pass key in noise.

Sources: LongBench-v2 (arXiv 2412.15204), with the prompts of the data folder; LongEval's topics (LongChat, 2023), with
unchanged prompts; passkey as in Landmark Attention (arXiv 2305.16300), in our words.
"""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from random import Random

from ringkv.evaluation.sample import Sample
from ringkv.evaluation.tasks.draft import Draft, Fit, places
from ringkv.evaluation.tasks.ruler.needles import NOISE
from ringkv.evaluation.tasks.source import Source

LETTERS = "ABCD"


def longbench_v2(source: Source) -> Iterator[Sample]:
    """Yield the first `source.count` samples that fit in the longest length."""
    fitting = (one for one in _choices(source) if source.count_tokens(one) + one.answer_tokens <= source.longest)
    return islice(fitting, source.count)


def _choices(source: Source) -> Iterator[Sample]:
    before, after = source.text("longbench_v2", "prompts", "0shot.txt").split("$DOC$")
    for line in source.lines("longbench_v2", "short_le30k.jsonl"):
        question = after.replace("$Q$", line["question"].strip())
        for letter in LETTERS:
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
        lines = source.lines("longeval", f"{topics}_topics.jsonl")
        for line, _ in zip(lines, range(source.count), strict=False):
            yield Sample(
                name=f"{topics}/{line['test_id']}",
                context=line["prompt"],
                references=(line["topics"][0],),
                answer_tokens=64,
                facts={"topics": topics},
            )


def passkey(source: Source) -> Iterator[Sample]:
    """Yield prompts with a number of five digits, at depths from 0 to 1."""
    for length, place, depth in places(source):
        key = str(Random(f"{source.seed}/passkey/{length}/{place}").randint(10_000, 99_999))
        yield Fit(f"{length}/{place}", 16, length, source)(partial(_hidden, key, depth))


def _hidden(key: str, depth: float, hay: int) -> Draft:
    lines = [NOISE] * hay
    lines.insert(round(depth * hay), f"The pass key is {key}. Remember it: {key} is the pass key.")
    return Draft(
        context="There is one thing worth knowing in much idle talk. Find it and remember it.\n\n" + "\n".join(lines),
        question="\n\nWhat is the pass key?",
        begin=" The pass key is",
        references=(key,),
        facts={"depth": depth},
    )
