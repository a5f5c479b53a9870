"""What the metadata builder gives a backend in each step, with a fake backend, and without any device for CUDA's rules.

R rows, T tokens of a step, b tokens of a block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")

import torch
from ringkv_vllm.backends.mixins import PlainBlocks
from ringkv_vllm.builder import SnapStreamBuilder
from ringkv_vllm.running import FirstRunner, Running, SecondRunner
from torch import Tensor
from vllm.v1.attention.backend import AttentionCGSupport

BLOCK, WIDTH, BUDGET, MOST_ROWS = 4, 40, 16, 8
PROMPTS = {"a": 40, "b": 10, "c": 23}


@dataclass
class Common:
    """The fields of vLLM's metadata that a builder reads."""

    num_reqs: int
    query_start_loc_cpu: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    seq_lens_cpu_upper_bound: Tensor
    block_table_tensor: Tensor
    slot_mapping: Tensor
    req_idx: np.ndarray | None = None
    max_seq_len: int = 999


def step(tokens: list[int], queries: list[int], device: str = "cpu", indices: Sequence[int] | None = None) -> Common:
    """Return the metadata of a step. tokens: seen by each row after it. device: where what a GPU has is."""
    rows, starts = len(tokens), torch.tensor([0, *np.cumsum(queries)], dtype=torch.int32)
    seen = torch.tensor(tokens, dtype=torch.int32)
    table = torch.arange(rows * WIDTH, dtype=torch.int32).view(rows, WIDTH) + 100
    of_device = (x.to(device) for x in (starts, seen))
    there = *of_device, seen, table.to(device), torch.arange(int(starts[-1])).to(device)
    return Common(rows, starts, *there, None if indices is None else np.array(indices))


class FakeBackend:
    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        self.kv_cache_spec, self.device = kv_cache_spec, device

    def build(self, common_prefix_len: int, common: Any, fast_build: bool = False) -> SimpleNamespace:
        return SimpleNamespace(common=common)


class Builder(SnapStreamBuilder, FakeBackend):
    pass


def builder(running: Running | None, device: str = "cpu") -> Builder:
    config = SimpleNamespace(
        additional_config={"ringkv": {"kv_budget": BUDGET, "kv_sinks": 2, "kv_recent": 8, "allow_full": True}},
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        compilation_config=SimpleNamespace(max_cudagraph_capture_size=MOST_ROWS),
    )
    made = Builder(SimpleNamespace(block_size=BLOCK), [], config, torch.device(device))
    if running:
        made.bind(running)
    return made


def first(names: str, extra: dict[str, Any] | None = None) -> FirstRunner:
    batch = SimpleNamespace(
        req_ids=list(names),
        req_id_to_index={name: row for row, name in enumerate(names)},
        num_prompt_tokens=np.array([PROMPTS[name] for name in names]),
    )
    params = SimpleNamespace(extra_args=extra)
    requests = {name: SimpleNamespace(sampling_params=params) for name in names}
    return FirstRunner(SimpleNamespace(input_batch=batch, requests=requests))


def second(indices: dict[str, int]) -> SecondRunner:
    prompts = np.zeros(10, dtype=np.int32)
    for name, index in indices.items():
        prompts[index] = PROMPTS[name]
    states = SimpleNamespace(
        index_to_req_id={index: name for name, index in indices.items()},
        req_id_to_index=indices,
        prompt_len=SimpleNamespace(np=prompts),
    )
    return SecondRunner(SimpleNamespace(req_states=states), {})


def test_a_decoding_row_reads_its_kept_blocks_and_writes_to_its_ring() -> None:
    common = step([45, 8, 23], [1, 8, 23])  # a decodes, b's prompt goes on, and c's ends
    slots = common.slot_mapping.clone()
    metadata = builder(first("abc")).build(0, common)
    table, lengths = metadata.common.block_table_tensor, metadata.common.seq_lens
    moved = PROMPTS["a"] // BLOCK
    assert table[0, : WIDTH - moved].tolist() == list(range(100 + moved, 100 + WIDTH))
    assert table[1:].tolist() == common.block_table_tensor[1:].tolist()
    assert lengths.tolist() == [BUDGET, 8, 23]
    # After 40 tokens of the prompt, the slot's 5th token has gone to one of the entries of `a` that are recent.
    block, entry = divmod(int(common.slot_mapping[0]), BLOCK)
    assert 0 <= (block - 100 - moved) * BLOCK + entry < BUDGET
    assert common.slot_mapping[1:].tolist() == slots[1:].tolist()
    assert metadata.common.max_seq_len == 23
    assert [task.last for task in metadata.compactions] == [31]


def test_a_ring_is_walked_around_once_before_an_entry_is_overwritten() -> None:
    made, taken = builder(first("a")), []
    for tokens in range(41, 41 + 2 * BUDGET):
        common = step([tokens], [1])
        made.build(0, common)
        taken.append(int(common.slot_mapping[0]))
    ring = len(set(taken))
    assert taken[ring:] == taken[: len(taken) - ring]
    assert 1 < ring < BUDGET


def test_steps_of_any_size_have_tensors_that_stay_where_a_graph_was_captured() -> None:
    made = builder(None)
    captured = made.build(0, step([1] * MOST_ROWS, [1] * MOST_ROWS)).common
    assert captured.max_seq_len == 999
    made.bind(first("ab"))
    for common in (step([45, 12], [1, 1]), step([46, 13, 0, 0], [1, 1, 0, 0])):
        read = made.build(0, common).common
        assert read.block_table_tensor.data_ptr() == captured.block_table_tensor.data_ptr()
        assert read.seq_lens.data_ptr() == captured.seq_lens.data_ptr()
        assert read.block_table_tensor.shape == common.block_table_tensor.shape
    assert read.seq_lens.tolist()[2:] == [0, 0]


def test_padding_rows_leave_the_slot_of_the_last_request_to_it() -> None:
    alone, padded = step([45], [1]), step([45, 0, 0], [1, 0, 0])
    for common in (alone, padded):
        builder(first("a")).build(0, common)
    assert padded.slot_mapping.tolist() == alone.slot_mapping.tolist()


def test_a_step_is_built_without_a_value_of_the_device() -> None:
    """The tensors of the device are on `meta`: they have no values, and whatever reads one fails."""
    made = builder(first("abc"), "meta")
    metadata = made.build(0, step([45, 8, 23], [1, 8, 23], device="meta"))
    assert metadata.common.seq_lens.is_meta
    assert metadata.common.max_seq_len == 23
    assert len(metadata.compactions) == 1


def test_both_model_runners_give_the_same_step() -> None:
    indices = {"a": 7, "b": 2, "c": 5}
    common, again = step([45, 8, 23], [1, 8, 23]), step([45, 8, 23], [1, 8, 23], indices=[7, 2, 5])
    one, other = builder(first("abc")).build(0, common), builder(second(indices)).build(0, again)
    assert torch.equal(one.common.block_table_tensor, other.common.block_table_tensor)
    assert torch.equal(one.common.seq_lens, other.common.seq_lens)
    assert torch.equal(common.slot_mapping, again.slot_mapping)
    assert len(one.compactions) == len(other.compactions) == 1


def test_the_second_runners_settings_are_those_of_requests_that_have_begun_and_not_ended() -> None:
    running = second({"a": 0})
    params = SimpleNamespace(extra_args={"kv_policy": "full"})
    begun = [SimpleNamespace(req_id="a", sampling_params=params), SimpleNamespace(req_id="b", sampling_params=None)]
    running.note(SimpleNamespace(finished_req_ids=set(), scheduled_new_reqs=begun))
    assert running.extra("a") == {"kv_policy": "full"}
    common = step([45], [1], indices=[0])
    assert builder(running).build(0, common).common.seq_lens.tolist() == [45]
    running.note(SimpleNamespace(finished_req_ids={"a", "unknown"}, scheduled_new_reqs=[]))
    assert running.settings == {"b": None}


def test_graphs_are_of_steps_with_one_token_a_row() -> None:
    assert Builder.get_cudagraph_support(None, None) == AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    assert not Builder.supports_update_block_table


@pytest.mark.parametrize("name", ["flash", "triton", "cpu"])
def test_a_backend_has_the_plug_ins_builder_and_implementation_before_vllms(name: str) -> None:
    module = __import__(f"ringkv_vllm.backends.{name}", fromlist=["*"])
    kind = {"flash": "Flash", "triton": "Triton", "cpu": "CPU"}[name]
    backend = getattr(module, f"SnapStream{kind}Backend")
    builder_bases, impl_bases = backend.get_builder_cls().__mro__, backend.get_impl_cls().__mro__
    assert [base.__name__ for base in builder_bases[1:3]] == ["SnapStreamBuilder", f"{kind}AttentionMetadataBuilder"]
    assert impl_bases[1].__name__ == "SnapStreamImpl"


def test_plain_blocks_are_read_in_the_order_of_their_tokens_and_written_by_slot() -> None:
    heads, width, count = 2, 8, 6
    cache = torch.randn(count, heads, BLOCK, 2 * width)

    class Impl:
        def do_kv_cache_update(self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slots: Tensor) -> None:
            for token, slot in enumerate(slots.tolist()):
                kv_cache[slot // BLOCK, :, slot % BLOCK] = torch.cat((key[token], value[token]), -1)

    blocks = PlainBlocks(cache, None, Impl())
    keys, values = blocks.read(torch.tensor([4, 1]))
    assert torch.equal(keys[1, 5], cache[1, 1, 1, :width])
    assert torch.equal(values[0, 3], cache[4, 0, 3, width:])
    fresh = torch.randn(3, heads, width), torch.randn(3, heads, width)
    blocks.write(*fresh, torch.tensor([9, 10, 20]))
    keys, values = blocks.read(torch.tensor([2, 5]))
    assert torch.equal(keys[:, [1, 2, 4]].transpose(0, 1), fresh[0])
    assert torch.equal(values[:, [1, 2, 4]].transpose(0, 1), fresh[1])
