from ringkv.base.events import KVUsage, PageUsage, Usage
from ringkv.server.run.generation import Finish, TokenOutput
from ringkv.server.run.usage import UsageCounter


def last_output(kv: KVUsage) -> TokenOutput:
    return TokenOutput(7, "", 0, is_first=False, finish=Finish("stop", Usage(3, 1, kv, cached_tokens=2)))


def test_the_caches_of_all_choices_are_summed() -> None:
    counter = UsageCounter(prompt_tokens=3)
    counter.add(0, last_output(KVUsage("snapstream", 10, 20, 30, 40, 50)))
    counter.add(1, last_output(KVUsage("snapstream", 1, 2, 3, 4, 5)))
    assert counter.usage() == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4},
        "kv": {
            "policy": "snapstream",
            "capacity": 11,
            "kept": 22,
            "evicted": 33,
            "ring_wraps": 44,
            "bytes_held": 55,
        },
    }


def test_pages_and_heads_are_summed_and_left_out_if_there_are_none() -> None:
    paged = KVUsage("arkvale", 1, 2, 3, 4, 5, PageUsage(held=6, resident=5, step=2, read=7, skipped=8, recalled=1))
    counter = UsageCounter(prompt_tokens=3)
    counter.add(0, last_output(paged))
    counter.add(1, last_output(paged))
    assert counter.usage()["kv"]["pages"] == {
        "held": 12,
        "resident": 10,
        "step": 4,
        "read": 14,
        "skipped": 16,
        "recalled": 2,
    }
    assert "heads" not in counter.usage()["kv"]


def test_an_output_without_a_token_counts_none() -> None:
    counter = UsageCounter(prompt_tokens=3)
    counter.add(0, TokenOutput(None, "", 0, is_first=True))
    assert counter.usage() == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}


def test_cached_tokens_count_once_however_many_answers_a_prompt_gets() -> None:
    counter = UsageCounter(prompt_tokens=6, answers=2)
    for index in range(4):
        counter.add(index, last_output(KVUsage("snapstream", 1, 2, 3, 4, 5)))
    assert counter.usage()["prompt_tokens_details"] == {"cached_tokens": 4}


def test_drafts_are_counted_as_predictions_if_there_are_any() -> None:
    kv = KVUsage("snapstream", 1, 2, 3, 4, 5)
    counter = UsageCounter(3, answers=2)
    for index, (drafted, accepted) in enumerate([(9, 4), (6, 6)]):
        usage = Usage(3, 8, kv, drafted_tokens=drafted, accepted_tokens=accepted)
        counter.add(index, TokenOutput(7, "", 0, is_first=False, finish=Finish("stop", usage)))
    details = {"accepted_prediction_tokens": 10, "rejected_prediction_tokens": 5}
    assert counter.usage()["completion_tokens_details"] == details
