"""Prompts that are longer than their lane, which is compacted while they are prefilled."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from ringkv.base.engine import chunks
from ringkv.base.errors import InvalidRequest
from ringkv.base.events import Token
from ringkv.base.kv import BLOCK
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.base.selectors import TOVA, KVzip, SnapKV
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.machine.compiler import missing_for_graphs
from ringkv.scheduler.loop import Loop
from tests.engine import kept, tiny
from tests.engine.test_golden import GEMMA3, GEMMA3_ROPES, LATENT
from tests.refusals import refusal

SIZE, KEPT, LENGTH = 128, 64, 397  # a prompt of three workspaces and a little
KV = tiny.choice("snapstream")


class Read(NamedTuple):
    """seen: which tokens each token of a prompt saw while it was prefilled, bool [H, T, T] by layer. logprobs: [T - 1].

    held: after each chunk, the tokens of each layer's entries, int64 [H, n].
    """

    seen: list[Tensor]
    logprobs: Tensor
    held: list[list[Tensor]]


def started(folder: Path, **changes: Any) -> LocalEngine:
    return build(tiny.config(folder, **{"prompt_tokens": 512, "prefill_workspace": SIZE, **changes}))


@pytest.fixture(scope="module")
def bounded(llama_dir: Path) -> LocalEngine:
    return started(llama_dir)


def asked(n: int = LENGTH, **changes: Any) -> Request:
    return tiny.request(tiny.prompt(n, n), kv=replace(KV, **changes))


def read(engine: LocalEngine, one: Request) -> Read:
    """Prefill a prompt in lane 0, and note which tokens each layer and head holds."""
    total, places = len(one.tokens), engine.model.places
    groups = [engine.lanes.groups[place.group] for place in places]
    seen = [torch.zeros(group.spec.key.heads, total, total, dtype=torch.bool) for group in groups]
    scored, held = [], []
    assert engine.begin(one, 0).tokens == 0
    for work in chunks(one, 0, 0, engine.limits.chunk):
        scored += engine.prefill([work])[0]
        held.append(tokens_in_lane(engine, work.stop))
        for group, own, mask in zip(groups, held[-1], seen, strict=True):
            for position in range(work.start, work.stop):
                visible = (own <= position) & (own > position - (group.window or total))
                mask[:, position].scatter_(1, own.clamp(min=0), visible)
    return Read(seen, torch.tensor([one.logprob for one in scored]), held)


def tokens_in_lane(engine: LocalEngine, stop: int) -> list[Tensor]:
    count = stop - engine.limits.workspace.dropped(stop - 1)
    entries = [torch.arange(count).expand(len(g.layers), g.spec.key.heads, -1) for g in engine.lanes.groups]
    tokens = list(engine.lanes.tokens_of(0, entries))
    return [tokens[place.group][place.row] for place in engine.model.places]


@pytest.mark.parametrize("n", [129, 197, LENGTH])
def test_logits_are_transformers_with_a_mask_that_hides_what_was_evicted(
    llama_dir: Path, bounded: LocalEngine, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_as_masked(bounded, llama_dir, "Llama", n, monkeypatch)


def test_layers_with_a_sliding_window_attend_to_their_window_beside_compacted_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.save(tmp_path, "Gemma3", **GEMMA3, rope_parameters=GEMMA3_ROPES)
    for lanes in (1, 2):  # in a lane of their own, or beside others
        assert_as_masked(started(tmp_path, lanes=lanes), tmp_path, "Gemma3", LENGTH, monkeypatch)


def test_latents_are_compacted_as_keys_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.save(tmp_path, "DeepseekV3", **LATENT)
    assert_as_masked(started(tmp_path), tmp_path, "DeepseekV3", LENGTH, monkeypatch)


def assert_as_masked(engine: LocalEngine, folder: Path, kind: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tiny.prompt(n)
    found = read(engine, tiny.request(tokens, prompt_logprobs=0))
    want = kept.logits(kept.model(folder, kind, found.seen, monkeypatch), tokens)
    torch.testing.assert_close(engine.lanes.logits(0), want[-1], atol=1e-4, rtol=1e-4)
    scores = want[:-1].log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    torch.testing.assert_close(found.logprobs, scores, atol=1e-4, rtol=1e-4)
    assert not all(bool(seen[:, -1].all()) for seen in found.seen)


def test_a_lane_never_holds_more_than_its_workspace_and_keeps_the_first_and_the_newest_tokens_in_order(
    bounded: LocalEngine,
) -> None:
    held = read(bounded, asked(sinks=5)).held
    assert max(own.shape[1] for chunk in held for own in chunk) == SIZE
    for stop, chunk in zip(range(16, LENGTH + 16, 16), held, strict=True):
        newest = torch.arange(max(0, min(stop, LENGTH) - KEPT // 4), min(stop, LENGTH))
        for own in chunk:
            assert bool((own.diff() > 0).all())
            assert own[:, :5].tolist() == [list(range(5))] * len(own)
            assert own[:, -len(newest) :].tolist() == [newest.tolist()] * len(own)
    assert len({tuple(head.tolist()) for own in held[-1] for head in own}) > 1


def test_a_prompt_that_fits_has_the_bits_of_an_engine_without_a_workspace(
    llama_dir: Path, bounded: LocalEngine
) -> None:
    exact = build(tiny.config(llama_dir, prompt_tokens=SIZE))
    for n, select in ((SIZE, SnapKV(window=8)), (80, KVzip())):
        one, logits = asked(n, select=select), []
        for engine in (exact, bounded):
            tiny.enter(engine, one)
            logits.append(tiny.decode(engine, 20)[1])
        assert torch.equal(*logits)


def test_staging_has_the_workspaces_entries_and_which_token_each_holds(llama_dir: Path, bounded: LocalEngine) -> None:
    exact = build(tiny.config(llama_dir, prompt_tokens=SIZE))
    assert bounded.limits.staging_bytes == exact.limits.staging_bytes + 3 * 2 * SIZE * 4
    assert bounded.limits.longest_prompt == 511


def test_the_requests_selector_has_the_last_word_and_decoding_goes_on_at_true_positions(
    llama_dir: Path, bounded: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, end = tiny.prompt(LENGTH + 40), 40
    one = tiny.request(tokens[:LENGTH], kv=replace(KV, budget=40, recent=8))
    seen = read(bounded, one).seen
    entries = bounded.kept(0, one.kv)
    for layer, own in enumerate(tokens_in_lane(bounded, LENGTH)):
        assert all(set(some) <= set(all_of.tolist()) for some, all_of in zip(entries[layer].tolist(), own, strict=True))
    (layout,) = bounded.compress(0, one.kv)
    bounded.insert(0, 0, one)
    found = tiny.decode(bounded, end, forced=tokens[LENGTH:])[1]
    masks = [torch.zeros(2, LENGTH + end, LENGTH + end, dtype=torch.bool) for _ in seen]
    for mask, prompt, own in zip(masks, seen, entries, strict=True):
        mask[:, :LENGTH, :LENGTH] = prompt
        held = torch.full((2, 40), -1)
        held[:, : own.shape[1]] = torch.from_numpy(own)
        for position in range(LENGTH, LENGTH + end):
            held[:, layout.entry(position)] = position
            mask[:, position] = (held[:, :, None] == torch.arange(LENGTH + end)).any(1)
    want = kept.logits(kept.model(llama_dir, "Llama", masks, monkeypatch), tokens)
    torch.testing.assert_close(found, want[LENGTH - 1 : -1], atol=2e-5, rtol=2e-5)


def test_the_last_queries_are_those_of_one_shot_prefill_if_few_tokens_follow_a_compaction(
    bounded: LocalEngine, llama_dir: Path
) -> None:
    n = SIZE + 3  # of 8 queries, 5 were computed before
    exact = build(tiny.config(llama_dir, prompt_tokens=512))
    # Every entry of the first layer depends on its token alone, and so do its queries.
    for engine in (exact, bounded):
        tiny.stage(engine, asked(n))
    first = [engine.lanes.staging.queries[0][0, 0] for engine in (exact, bounded)]
    torch.testing.assert_close(first[1], first[0])


@pytest.mark.parametrize("n", [586, 642])
def test_the_last_queries_are_those_of_one_shot_prefill_if_a_block_has_fewer_tokens_than_the_window(
    llama_dir: Path, n: int
) -> None:
    window = 96  # of tokens, and a compaction evicts 64
    choice = replace(KV, budget=200, select=SnapKV(window=window))
    sizes = {"kv": choice, "capacity": 200, "prompt_tokens": 1024}
    first = []
    for engine in (build(tiny.config(llama_dir, **sizes)), started(llama_dir, **sizes, prefill_workspace=512)):
        tiny.stage(engine, asked(n, budget=200, select=choice.select))
        first.append(engine.lanes.staging.queries[0][0, 0])
    torch.testing.assert_close(first[1], first[0])


@pytest.mark.parametrize("policy", ["streaming", "snapkv"])
def test_the_newest_tokens_of_other_policies_stay_too(bounded: LocalEngine, policy: str) -> None:
    one = tiny.request(tiny.prompt(LENGTH), kv=tiny.choice(policy))
    found = tiny.kept(bounded, one)
    newest = 59 if policy == "streaming" else 8  # a compaction evicts at least one of 64
    assert (np.sort(found)[..., -newest:] == np.arange(LENGTH - newest, LENGTH)).all()


def test_protected_first_tokens_stay_in_every_head(bounded: LocalEngine) -> None:
    one = asked(protect=((0, 20),))
    assert (tiny.kept(bounded, one)[..., :20] == np.arange(20)).all()


@pytest.mark.parametrize(
    ("changes", "param", "reason"),
    [
        ({"policy": "full", "budget": None}, "kv_policy", "kv_policy full is not possible with prefill_workspace 128"),
        ({"select": KVzip()}, "kv_select", "kv_select kvzip is not implemented with prefill_workspace 128"),
        ({"select": TOVA()}, "kv_select", "kv_select tova is not possible with prefill_workspace 128"),
        ({"turns": "continue"}, "kv_turns", "kv_turns continue is not implemented with prefill_workspace 128"),
        ({"protect": ((5, 9),)}, "kv_protect", "kv_protect names tokens after others"),
        ({"protect": ((0, 33),)}, "kv_protect", "kv_protect keeps 33 first tokens, and at most 32 may stay"),
        ({"sinks": 33}, "kv_sinks", "kv_sinks keeps 33 first tokens, and at most 32 may stay"),
        ({"select": SnapKV(window=64)}, "kv_window", "kv_window 64 is not below 64, the entries that stay"),
    ],
)
def test_what_needs_the_whole_prompt_is_refused(
    bounded: LocalEngine, changes: dict[str, Any], param: str, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"{reason}: ") as refused:
        bounded.admit(asked(**changes))
    assert refused.value.param == param
    if "budget" not in changes:
        bounded.admit(asked(60, **changes))


def test_requests_that_are_submitted_together_have_a_lane_that_is_compacted_for_each_choice(
    bounded: LocalEngine,
) -> None:
    choices = (KV, replace(KV, sinks=20), tiny.choice("streaming"))
    each = [
        replace(asked(), id=str(number), kv=kv, sampling=SamplingParams(max_tokens=20, temperature=0))
        for number, kv in enumerate(choices)
    ]
    alone = {one.id: tiny.serve(bounded, one)[one.id] for one in each}
    assert tiny.serve(bounded, *each) == alone
    assert len({tuple(tokens) for tokens in alone.values()}) == len(each)


def test_a_request_that_shares_a_compacted_prompt_cannot_protect_more(bounded: LocalEngine) -> None:
    tiny.stage(bounded, asked())
    with refusal("kv_protect", "9 first tokens"):
        bounded.compress(0, replace(KV, protect=((0, 9),)))


def test_only_what_was_staged_before_the_first_compaction_is_stored(llama_dir: Path) -> None:
    engine = started(llama_dir, store_bytes=10**7)
    want = tiny.stage(engine, asked())
    cached = engine.begin(asked(), 0)
    assert cached.tokens == cached.entries == (SIZE - 8) // BLOCK * BLOCK
    for work in chunks(asked(), 0, cached.tokens, 16):
        engine.prefill([work])
    assert torch.equal(engine.lanes.logits(0), want)
    longer = tiny.request([*asked().tokens[:300], *tiny.prompt(50, 3)], kv=KV)
    assert engine.begin(longer, 0).tokens == cached.tokens


@pytest.mark.skipif(missing_for_graphs() is not None, reason=str(missing_for_graphs()))
def test_a_long_prompt_gives_the_same_answer_alone_and_in_passes_with_others(tmp_path: Path) -> None:
    tiny.save(tmp_path, "Llama", vocab_size=224, max_position_embeddings=1024)
    shared = {"slots": 4, "lanes": 4, "staged_tokens": 4 * SIZE, "chunk": 64, "max_step": 0.0, "dtype": "bfloat16"}
    engine = started(tmp_path, **shared)
    assert engine.limits.packs
    each = [replace(asked(n), id=str(n), sampling=SamplingParams(max_tokens=20, temperature=0)) for n in (397, 150, 20)]
    alone = {one.id: tiny.serve(engine, one)[one.id] for one in each}
    loop, together = Loop(engine), {one.id: list[int]() for one in each}
    for one in each:
        loop.submit(one)
    while not loop.idle:
        for event in loop.step():
            if isinstance(event, Token):
                together[event.request_id].append(event.token)
    assert together == alone
