"""Heads' scores against transformers' attention, and slots that heads divide by a profile of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ringkv.base.errors import InvalidRequest
from ringkv.base.repeat_words import RepeatWords
from ringkv.cache.compress.kvzip import FIRST
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.engine.head_scores import head_scores
from tests.engine import kept, tiny
from tests.refusals import refusal

LAYERS, HEADS, GROUPS = 3, 2, 3
KV = tiny.choice("snapstream", budget=40, recent=8, heads="profile")
SELECTED = 40 - 4 - 8
SHARES = ((1.0, 3.0), (0.0, 2.0), (4.0, 0.5))
WORDS = RepeatWords((5, 7, 9), ())


def started(folder: Path, **changes: Any) -> LocalEngine:
    return build(tiny.config(folder, **{"kv": KV, "head_shares": SHARES, **changes}))


def asked(n: int = 150, **changes: Any) -> Any:
    return tiny.request(tiny.prompt(n, n), kv=replace(KV, **changes))


def test_a_heads_score_is_the_mean_of_the_highest_weights_of_transformers_attention(llama_dir: Path) -> None:
    tokens, n = tiny.prompt(90), 90
    engine = build(tiny.config(llama_dir), find_words=lambda: WORDS)
    found = torch.tensor(head_scores(engine, tokens))
    model = transformers.AutoModelForCausalLM.from_pretrained(llama_dir, attn_implementation="eager").eval()
    with torch.no_grad():
        whole = torch.tensor([[*tokens, *WORDS.first, *tokens]])
        attentions = model(whole, output_attentions=True).attentions
    for layer in range(LAYERS):
        weights = attentions[layer][0, :, n:].view(HEADS, GROUPS, -1, whole.shape[1])
        # KVzip's queries see the first tokens twice: on their own, and as part of the text.
        weights = weights / (1 + weights[..., :FIRST].sum(-1, keepdim=True))
        want = weights[..., FIRST:n].amax((1, 2)).mean(-1)
        torch.testing.assert_close(found[layer], want, atol=1e-5, rtol=1e-3)


def test_heads_select_by_their_shares_and_a_fifth_at_least(llama_dir: Path) -> None:
    held = torch.from_numpy(tiny.kept(started(llama_dir), asked()) >= 0).sum(-1)
    found = (held - 4 - 8).tolist()
    # Of 168 tokens the head without a share has a fifth of 28; 10.5 shares divide the other 163, 15.52 tokens each.
    assert found == [[15, 47], [5, 31], [62, 8]]
    assert sum(map(sum, found)) == LAYERS * HEADS * SELECTED


def test_every_head_selects_the_tokens_with_the_most_votes(llama_dir: Path) -> None:
    engine = started(llama_dir)
    profile, equal = (tiny.kept(engine, asked(heads=heads)) for heads in ("profile", "equal"))
    for layer in range(LAYERS):
        for head in range(HEADS):
            tokens, usual = set(profile[layer, head].tolist()) - {-1}, set(equal[layer, head].tolist())
            assert tokens <= usual or tokens >= usual


def test_protected_tokens_are_in_every_head(llama_dir: Path) -> None:
    held = tiny.kept(started(llama_dir), asked(protect=((60, 75),)))
    assert all((held == token).any(-1).all() for token in range(60, 75))
    assert int((held >= 0).sum()) == LAYERS * HEADS * 40


def test_chunked_and_one_shot_prefill_keep_the_same(llama_dir: Path) -> None:
    found = [tiny.kept(started(llama_dir, chunk=chunk), asked()) for chunk in (16, 256)]
    np.testing.assert_array_equal(*found)


def test_logits_are_transformers_with_a_mask_for_each_head(llama_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, tokens = started(llama_dir), tiny.prompt(150)
    tiny.enter(engine, tiny.request(tokens[:100]), slot=1)
    found = tiny.decode(engine, 50, slot=1, forced=tokens[100:])[1]
    visible = kept.visible(engine, 100, len(tokens))
    want = kept.logits(kept.model(llama_dir, "Llama", visible, monkeypatch), tokens)
    torch.testing.assert_close(found, want[99:149], atol=2e-5, rtol=2e-5)


def test_a_request_gives_the_same_tokens_alone_and_beside_others(llama_dir: Path) -> None:
    engine, one = started(llama_dir), asked()
    tiny.enter(engine, one, slot=1)
    alone = tiny.decode(engine, 20, slot=1)[0]
    engine.release(1)
    for slot, other in enumerate((asked(90, heads="global"), one, asked(120, heads="equal"))):
        tiny.enter(engine, other, slot)
    assert tiny.decode(engine, 20, slot=1)[0] == alone


def test_a_profile_is_needed(llama_dir: Path) -> None:
    engine = started(llama_dir, kv=replace(KV, heads="global"), head_shares=())
    with refusal("kv_heads", "ringkv profile MODEL"):
        engine.admit(asked())
    with pytest.raises(InvalidRequest, match="ringkv profile MODEL") as refused:
        started(llama_dir, head_shares=())
    assert refused.value.param == "kv_heads"
