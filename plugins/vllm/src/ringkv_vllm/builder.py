"""SnapStreamBuilder: a mixin for the metadata builder of an attention backend."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionCGSupport

from ringkv_vllm.arithmetic import Blocks
from ringkv_vllm.compaction import Task, slots_of
from ringkv_vllm.rows import Rows
from ringkv_vllm.running import Running
from ringkv_vllm.settings import Settings, read


class SnapStreamBuilder:
    """Rewrites what decoding rows read, and notes the prompts that end in a step.

    CUDA graphs replay a step with the addresses that it was captured with. So what a step reads is copied to tensors
    that stay, and nothing waits for the device: the host computes with its own lengths. A step with tokens of a prompt
    runs attention outside of graphs, where prompts are compacted.
    """

    _cudagraph_support = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    supports_update_block_table = False

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._settings: Settings | None = read(vllm_config.additional_config)
        self._running: Running | None = None
        self._names: list[str] = []
        self._requests: list[Blocks] = []
        self._rows = self._rows_on_host = Rows.of((), 0)
        sizes = vllm_config.scheduler_config.max_num_seqs, vllm_config.compilation_config.max_cudagraph_capture_size
        self._most_rows = max(size or 0 for size in sizes)
        self._table = torch.empty(0, 0, dtype=torch.int32, device=device)
        self._lengths = torch.empty(self._most_rows, dtype=torch.int32, device=device)

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        return cls._cudagraph_support

    def bind(self, running: Running) -> None:
        """Give it the requests of steps."""
        self._running = running

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        common = common_attn_metadata
        names = self._running.names(common)[: common.num_reqs] if self._running else ()
        self._update_rows(names, common.num_reqs)
        table, lengths = self._stored(common.block_table_tensor)
        self._rows.rewrite(common, self.kv_cache_spec.block_size, table, lengths)
        rows, seen = self._rows_on_host, common.seq_lens_cpu_upper_bound[: common.num_reqs].long()
        decodes = rows.decodes(seen, common.query_start_loc_cpu[: common.num_reqs + 1].diff().long())
        # A graph is captured of a step without requests, for the longest ones.
        longest = int(torch.where(decodes, rows.live(seen), seen).max()) if names else common.max_seq_len
        changed = replace(common, block_table_tensor=table, seq_lens=lengths, max_seq_len=longest)
        metadata = super().build(common_prefix_len, changed, fast_build)
        ends = (~decodes & (seen >= rows.prompt)).nonzero()[:, 0].tolist()
        metadata.compactions = list(self._tasks(ends, common))
        return metadata

    def _update_rows(self, names: Sequence[str], count: int) -> None:
        """Make the rows of requests anew if any come or go."""
        if names == self._names and len(self._rows.prompt) == count:
            return
        self._names = list(names)
        self._requests = [self._blocks(name) for name in names]
        self._rows_on_host = Rows.of(self._requests, count)
        self._rows = self._rows_on_host.to(self.device)

    def _blocks(self, name: str) -> Blocks:
        assert self._settings is not None
        assert self._running is not None
        choice = self._settings.of_admitted(self._running.extra(name))
        return Blocks(choice, self._running.prompt(name), self.kv_cache_spec.block_size)

    def _stored(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tensors that stay, in the shape of a step's table [R, width] and lengths [R]."""
        rows, width = table.shape
        if self._table.shape[1] != width:
            self._table = self._table.new_empty(self._most_rows, width)
        return self._table[:rows], self._lengths[:rows]

    def _tasks(self, ending: Sequence[int], common: Any) -> Iterator[Task]:
        for row in ending:
            blocks = self._requests[row]
            if not blocks.is_copied:
                continue
            assert blocks.choice is not None
            assert blocks.plan is not None
            table = common.block_table_tensor[row]
            last = int(common.query_start_loc_cpu[row + 1]) - 1
            slots = slots_of(table, blocks.plan, blocks.moved, self.kv_cache_spec.block_size)
            yield Task(blocks.choice, blocks.plan, last, table[: blocks.moved].long(), slots)
