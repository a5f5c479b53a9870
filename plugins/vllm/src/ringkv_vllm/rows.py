"""rows: what the attention of one step reads and writes, as the metadata builder rewrites it.

R rows of a step, one for each request. vLLM gives each a row of blocks, a length and the slots of its new tokens as if
it kept everything. A row that decodes gets its kept blocks, their live entries and the ring's next entry instead, in
tensors of the same shapes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ringkv_vllm.arithmetic import Blocks

FOREVER = 1 << 30  # entries of a request that keeps every token, or of a row that is not a request's


@dataclass(frozen=True)
class Rows:
    """The requests of a step, int64 [R] each.

    prompt: tokens. moved: blocks before the kept ones. protected, base, ring: of the layout.
    """

    prompt: Tensor
    moved: Tensor
    protected: Tensor
    base: Tensor
    ring: Tensor

    @classmethod
    def of(cls, requests: Sequence[Blocks], count: int) -> "Rows":
        """Return the rows of these requests, and others up to `count` that keep what they have."""
        rows = [_numbers(blocks) for blocks in requests] + [(FOREVER, 0, 0, 0, FOREVER)] * (count - len(requests))
        return cls(*torch.tensor(rows, dtype=torch.int64).view(count, 5).unbind(1))

    def to(self, device: torch.device) -> "Rows":
        """Return the rows on a device, which are copied at once."""
        numbers = torch.stack((self.prompt, self.moved, self.protected, self.base, self.ring))
        return Rows(*numbers.to(device, non_blocking=True).unbind(0))

    def decodes(self, lengths: Tensor, queries: Tensor) -> Tensor:
        """Return bool [R]: whether a row feeds tokens after its prompt. lengths: its tokens, the new ones included."""
        return lengths - queries >= self.prompt

    def live(self, lengths: Tensor) -> Tensor:
        """Return the entries that hold a token once so many were seen, int64 [R]."""
        return torch.minimum(self.protected + lengths - self.base, self.protected + self.ring)

    def entry(self, positions: Tensor) -> Tensor:
        """Return the entry of the token at a position after the prompt, int64 [R]."""
        beyond = positions - self.base
        return self.protected + torch.where(beyond < self.ring, beyond, beyond % self.ring)

    def rewrite(self, common: Any, block: int, table: Tensor, lengths: Tensor) -> None:
        """Write the table [R, width] and lengths int32 [R] that a step reads. common: the metadata of vLLM's step.

        The slots of tokens of rows that decode are changed in place, because the cache is written from them before
        attention runs.
        """
        seen, starts, slots = common.seq_lens.long(), common.query_start_loc, common.slot_mapping
        original = common.block_table_tensor
        decodes = self.decodes(seen, starts.diff().long())
        entries = self.entry(seen - 1)
        columns = torch.where(decodes, self.moved + entries.div(block, rounding_mode="floor"), 0)
        new = original.gather(1, columns[:, None].long())[:, 0].long() * block + entries % block
        last = (starts[1:] - 1).clamp(min=0).long()
        # Rows that are padding have the last token of another row. They add nothing.
        slots.index_add_(0, last, torch.where(decodes, new - slots[last], 0).to(slots.dtype))
        shift = torch.where(decodes, self.moved, 0)[:, None]
        places = (torch.arange(original.shape[1], device=original.device) + shift).clamp(max=original.shape[1] - 1)
        table.copy_(original.gather(1, places))
        lengths.copy_(torch.where(decodes, self.live(seen), seen))


def _numbers(blocks: Blocks) -> tuple[int, int, int, int, int]:
    plan = blocks.plan
    if plan is None:
        return blocks.prompt, 0, 0, 0, FOREVER
    return blocks.prompt, blocks.moved, plan.protected, plan.base, plan.ring
