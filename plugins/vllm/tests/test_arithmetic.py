"""The blocks of a request, against a simulation that places one token after the other."""

from random import Random
from types import SimpleNamespace

import pytest
import torch
from ringkv_vllm.arithmetic import Blocks
from ringkv_vllm.rows import Rows
from torch import Tensor

from ringkv.base.kv import KVChoice
from ringkv.cache.layouts import layout

BUDGET, BLOCK = 128, 32
CHOICES = [
    KVChoice("snapstream", BUDGET, recent=32),
    KVChoice("snapstream", BUDGET, recent=32, elastic=False),
    KVChoice("streaming", BUDGET),
    KVChoice("snapstream", 100, sinks=1, recent=0.5),
    None,
]
PROMPTS = [1, 3, 4, 5, 31, 32, 33, 95, 96, 97, 127, 128, 129, 160, 161, 300]


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_row_only_grows_and_has_room_for_every_live_entry(choice: KVChoice | None, prompt: int) -> None:
    blocks = Blocks(choice, prompt, BLOCK)
    rows = [blocks.row(tokens) for tokens in range(1, prompt + 300)]
    assert rows == sorted(rows)
    for tokens, row in enumerate(rows, 1):
        if choice is None or tokens < prompt:
            assert row == -(-tokens // BLOCK)
        else:
            plan = layout(choice, prompt, choice.budget)
            assert (row - blocks.moved) * BLOCK >= plan.live(tokens) > (row - blocks.moved - 1) * BLOCK


@pytest.mark.parametrize("choice", CHOICES)
def test_evicted_tokens_and_saved_blocks_are_those_that_are_not_held(choice: KVChoice | None) -> None:
    blocks = Blocks(choice, 300, BLOCK)
    assert (blocks.evicted(299), blocks.saved(299)) == (0, 0)
    for tokens in (300, 320, 500):
        held = tokens if choice is None else choice.budget
        assert blocks.evicted(tokens) == tokens - held
        assert blocks.saved(tokens) == -(-tokens // BLOCK) - -(-held // BLOCK)


@pytest.mark.parametrize("choice", CHOICES[:4])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_no_token_overwrites_a_block_of_the_prompt(choice: KVChoice, prompt: int) -> None:
    blocks, plan = Blocks(choice, prompt, BLOCK), layout(choice, prompt, choice.budget)
    if not blocks.is_copied:
        assert all(plan.entry(position) >= prompt for position in range(prompt, prompt + 400))


def step(table: Tensor, lengths: Tensor, slots: Tensor, starts: Tensor) -> SimpleNamespace:
    """Return what `Rows.rewrite` reads of vLLM's metadata."""
    return SimpleNamespace(block_table_tensor=table, seq_lens=lengths, slot_mapping=slots, query_start_loc=starts)


def test_rows_read_and_write_what_the_layout_says() -> None:
    random = Random(3)
    requests = [Blocks(random.choice(CHOICES), random.choice(PROMPTS), BLOCK) for _ in range(64)]
    new = [random.randrange(0, 300) for _ in requests]  # tokens after the prompt, the fed one included; 0: its chunk
    width = 24
    table = torch.tensor([random.sample(range(1000), width) for _ in requests], dtype=torch.int32)
    counts = [1 if more else random.randrange(1, each.prompt + 1) for each, more in zip(requests, new, strict=True)]
    lengths = torch.tensor([each.prompt + more for each, more in zip(requests, new, strict=True)], dtype=torch.int32)
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)
    slots = torch.arange(10**6, 10**6 + sum(counts))
    before = slots.clone()
    read, live = torch.empty_like(table), torch.empty_like(lengths)
    rows = Rows.of(requests, len(requests))
    rows.rewrite(step(table, lengths, slots, starts), BLOCK, read, live)
    decodes = rows.decodes(lengths.long(), starts.diff().long())
    for row, (each, more, start, count) in enumerate(zip(requests, new, starts.tolist(), counts, strict=False)):
        assert decodes[row] == (more > 0)
        mine = slots[start : start + count]
        if not more:
            assert torch.equal(mine, before[start : start + count])
            assert torch.equal(read[row], table[row])
            assert live[row] == each.prompt
            continue
        position = each.prompt + more - 1
        if each.choice is None:
            entry, held = position, position + 1
        else:
            plan = layout(each.choice, each.prompt, each.choice.budget)
            entry, held = plan.entry(position), plan.live(position + 1)
        assert live[row] == held
        assert mine.tolist() == [int(table[row, each.moved + entry // BLOCK]) * BLOCK + entry % BLOCK]
        assert read[row, 0] == table[row, each.moved]


def test_rows_beside_those_of_requests_are_left_alone() -> None:
    table, lengths, slots = torch.tensor([[5, 6], [7, 8]]), torch.tensor([40, 1]), torch.tensor([9, 10])
    read, live = torch.empty_like(table), torch.empty_like(lengths)
    Rows.of([], 2).rewrite(step(table, lengths, slots, torch.tensor([0, 1, 2])), BLOCK, read, live)
    assert read.tolist() == table.tolist()
    assert live.tolist() == [40, 1]
    assert slots.tolist() == [9, 10]
