"""SnapStreamBuilder: a mixin for the metadata builder of an attention backend."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ringkv_vllm.arithmetic import Blocks
from ringkv_vllm.compaction import Task, slots_of
from ringkv_vllm.rows import Rows
from ringkv_vllm.settings import Settings, read


class SnapStreamBuilder:
    """Rewrites what decoding rows read, and notes the prompts that end in a step."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._settings: Settings | None = read(vllm_config.additional_config)
        self._runner: Any = None
        self._ids: list[str] = []
        self._requests: list[Blocks] = []
        self._rows: Rows | None = None

    def bind(self, runner: Any) -> None:
        """Give it the model runner, which knows the requests of a step."""
        self._runner = runner

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        common = common_attn_metadata
        if self._runner is None or not self._runner.input_batch.num_reqs:  # profiling, before requests exist
            return super().build(common_prefix_len, common, fast_build)
        rows = self._rows_of(common.num_reqs)
        original, block = common.block_table_tensor, self.kv_cache_spec.block_size
        table, lengths, decodes = rows.rewrite(
            original, common.seq_lens, common.slot_mapping, common.query_start_loc, block
        )
        changed = replace(common, block_table_tensor=table, seq_lens=lengths, max_seq_len=int(lengths.max()))
        metadata = super().build(common_prefix_len, changed, fast_build)
        ends = ~decodes & (common.seq_lens.long() >= rows.prompt)
        ending = ends.nonzero()[:, 0].tolist() if bool(ends.any()) else []
        metadata.compactions = list(self._tasks(ending, common, block))
        return metadata

    def _rows_of(self, count: int) -> Rows:
        """Return the rows of the runner's requests. They are made anew only if requests come or go."""
        batch = self._runner.input_batch
        ids: Sequence[str] = batch.req_ids
        if self._rows is None or ids != self._ids or len(self._rows.prompt) != count:
            self._ids = list(ids)
            self._requests = [self._blocks(name, int(batch.num_prompt_tokens[row])) for row, name in enumerate(ids)]
            self._rows = Rows.of(self._requests, count, self.device)
        return self._rows

    def _blocks(self, request_id: str, prompt: int) -> Blocks:
        assert self._settings is not None
        params = self._runner.requests[request_id].sampling_params
        choice = self._settings.of_admitted(params.extra_args if params else None)
        return Blocks(choice, prompt, self.kv_cache_spec.block_size)

    def _tasks(self, ending: Sequence[int], common: Any, block: int) -> Any:
        for row in ending:
            blocks = self._requests[row]
            if not blocks.is_copied:
                continue
            assert blocks.choice is not None
            assert blocks.plan is not None
            table = common.block_table_tensor[row]
            last = int(common.query_start_loc_cpu[row + 1]) - 1
            slots = slots_of(table, blocks.plan, blocks.moved, block)
            yield Task(blocks.choice, blocks.plan, last, table[: blocks.moved].long(), slots)
