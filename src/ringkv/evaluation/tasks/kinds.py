"""kinds: what tasks ask for, in plural words, for sentences about those that suffer most."""

from collections.abc import Mapping

from ringkv.evaluation.tasks.lookups import DICTIONARIES
from ringkv.evaluation.tasks.ruler.needles import RETRIEVAL

LOOK_UPS, QUESTIONS, SUMMARIES, CODE = "look-ups", "questions about texts", "summaries", "programs"
KINDS: Mapping[str, str] = {
    **dict.fromkeys(RETRIEVAL, LOOK_UPS),
    **dict.fromkeys(("passkey", "passkeys", "registers", "conversation", "recall"), LOOK_UPS),
    **dict.fromkeys(("longeval", "passage_retrieval_en"), LOOK_UPS),
    **{f"dictionary_{keys}": LOOK_UPS for keys in DICTIONARIES},
    "vt": "chains of names",
    **dict.fromkeys(("cwe", "fwe", "passage_count"), "counts over the whole prompt"),
    **dict.fromkeys(("qa_1", "qa_2", "narrativeqa", "qasper", "multifieldqa_en", "hotpotqa"), QUESTIONS),
    **dict.fromkeys(("2wikimqa", "musique", "triviaqa", "longbench_v2"), QUESTIONS),
    **dict.fromkeys(("gov_report", "qmsum", "multi_news", "samsum"), SUMMARIES),
    "trec": "classes by example",
    **dict.fromkeys(("lcc", "repobench-p", "humaneval", "leetcode"), CODE),
    **dict.fromkeys(("gsm8k", "aime24"), "calculations"),
}


def kind_of(task: str) -> str:
    """Return what a task asks for; a task without a kind is its own."""
    return KINDS.get(task, task)
