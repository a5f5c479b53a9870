"""KVzip asks for the repetition in words, which come after the prompt and before what is repeated."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ringkv.base.errors import PromptTooLong
from ringkv.base.repeat_words import RepeatWords
from ringkv.base.selectors import KVzip
from ringkv.cache.compress.kvzip import LEAD
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from tests.engine import tiny
from tests.refusals import refusal

WORDS = RepeatWords((5, 7, 9), (11, 13, 15, 17, 19))
KV = tiny.choice("snapstream", KVzip(), budget=40, recent=8)


def started(folder: Path, words: RepeatWords = WORDS, **changes: object) -> LocalEngine:
    return build(tiny.config(folder, **changes), find_words=lambda: words)


@pytest.mark.parametrize(("start", "words"), [(0, WORDS.first), (30, WORDS.later)])
def test_a_repetition_has_the_keys_and_queries_of_the_prompt_the_words_and_the_tokens(
    llama_dir: Path, start: int, words: tuple[int, ...]
) -> None:
    engine, tokens = started(llama_dir), tiny.prompt(100)
    tiny.stage(engine, tiny.request(tokens))
    keys, (queries,) = engine.lanes.staging.bodies[0].planes[0], engine.lanes.staging.queries
    with torch.inference_mode():
        pieces = [(torch.stack(q), own.clone()) for q, own in engine.lanes.view(0, 0, 1).repeat(start, start + 20)]
    again = [*words, *tokens[start : start + 20]]
    done = 0
    for q, own in pieces:
        done += q.shape[3]
        tiny.stage(engine, tiny.request([*tokens, *again[:done]]))
        torch.testing.assert_close(own, keys[:, 0, :, 100 : 100 + done], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(q, queries[:, 0, :, :, -q.shape[3] :], atol=1e-4, rtol=1e-4)
    assert done == len(again)


def test_words_change_what_is_kept_and_chunked_and_one_shot_prefill_agree(llama_dir: Path) -> None:
    asked = tiny.request(tiny.prompt(120), kv=KV)
    kept, whole, unasked = (
        tiny.kept(engine, asked)
        for engine in (
            started(llama_dir, prompt_tokens=512),
            started(llama_dir, prompt_tokens=512, chunk=256),
            started(llama_dir, RepeatWords(), prompt_tokens=512),
        )
    )
    np.testing.assert_array_equal(kept, whole)
    assert (kept != unasked).any()


def test_words_are_looked_up_once_a_selector_needs_them(llama_dir: Path) -> None:
    found: list[int] = []

    def words() -> RepeatWords:
        found.append(1)
        return WORDS

    engine = build(tiny.config(llama_dir), find_words=words)
    tiny.kept(engine, tiny.request(tiny.prompt(120)))
    assert not found
    for n in (120, 130):
        tiny.kept(engine, tiny.request(tiny.prompt(n), kv=KV))
    assert len(found) == 1


def test_a_prompt_that_leaves_room_for_the_words_alone_is_refused(llama_dir: Path) -> None:
    room = 256 - 16 + 8  # a piece is 16 tokens of the graph, and 8 of them are repeated
    for words, fits in ((0, True), (16 - LEAD, False)):
        engine = started(llama_dir, RepeatWords((3,) * words, (3,) * words))
        asked = tiny.request(tiny.prompt(room - 16), kv=KV)
        if fits:
            tiny.kept(engine, asked)
        else:
            with refusal("prompt", "no room", PromptTooLong):
                tiny.kept(engine, asked)
