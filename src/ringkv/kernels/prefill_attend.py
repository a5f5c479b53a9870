"""prefill_attend: stage one chunk of a prompt and attend causally to all staged tokens.

T tokens of the chunk, H key-value heads, G query heads per key-value head, S staged tokens, D head_dim, W window.
"""

import torch
from torch import Tensor
from torch.library import register_fake

from ringkv.kernels.library import LIBRARY
from ringkv.kernels.packing import fits_tiles
from ringkv.kernels.partial import Partial, merge

BLOCK = 2048  # keys scored at a time if flash attention does not support the inputs
MAX_WIDTH = 256  # largest head_dim of torch's flash attention on CUDA


def prefill_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    window: Tensor,
    span: Tensor,
    scale: float,
    sliding: int = 0,
) -> Partial:
    """Stage k, v [T, H, D] and attend causally with q [T, H, G, D] to tokens 0 .. start+T-1.

    keys, values [H, S, D] and window [H, G, W, D] change in place. span int64 [2] on the CPU: the chunk's first
    position, and the prompt's length. The window keeps the prompt's last W queries, right-aligned. Tokens beyond the
    length are padding, which no token of the prompt sees. scale: factor on the scores. sliding: tokens that a token
    sees, including itself; 0 is all. Returns out [T, H, G, D] and lse [T, H, G].
    """
    staged = (q, k, v, keys, values, window, span, scale)
    if sliding:
        return Partial(*torch.ops.ringkv.prefill_attend_sliding(*staged, sliding))
    # Selected here, so that a compiled graph calls the tiles operator without returning to Python in every layer.
    tiles = fits_tiles(q, "prefill_attend_tiles")
    attend = torch.ops.ringkv.prefill_attend_tiles if tiles else torch.ops.ringkv.prefill_attend
    return Partial(*attend(*staged))


def _stage(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, window: Tensor, span: Tensor) -> int:
    """Write the chunk to the staging lane and return its first position."""
    start, length = (int(n) for n in span.tolist())
    stop, first = start + q.shape[0], length - window.shape[2]
    keys[:, start:stop] = k.transpose(0, 1)
    values[:, start:stop] = v.transpose(0, 1)
    low, high = max(start, first), min(stop, length)
    if low < high:
        window[:, :, low - first : high - first] = q[low - start : high - start].permute(1, 2, 0, 3)
    return start


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    window: Tensor,
    span: Tensor,
    scale: float,
    sliding: int = 0,
    block: int | None = None,
) -> Partial:
    """Implement `prefill_attend` in plain torch, in float32, `block` keys at a time (all if None)."""
    start = _stage(q, k, v, keys, values, window, span)
    rows, stop = q.permute(1, 2, 0, 3).float() * scale, start + len(q)
    position = torch.arange(start, stop, device=q.device)[:, None]
    result = Partial(torch.zeros_like(rows), rows.new_full(rows.shape[:-1], float("-inf")))
    first = max(0, start - sliding + 1) if sliding else 0
    for low in range(first, stop, block or stop):
        here = slice(low, min(stop, low + (block or stop)))
        key = torch.arange(here.start, here.stop, device=q.device)
        hidden = (key > position) | (key <= position - sliding) if sliding else key > position
        result = merge(result, _attend(rows, keys[:, None, here].float(), values[:, None, here].float(), hidden))
    return Partial(result.out.permute(2, 0, 1, 3).to(q.dtype), result.lse.permute(2, 0, 1).contiguous())


def _attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Partial:
    """Return attention of scaled q [..., T, D] to k, v [..., n, D], except keys with bool hidden [T, n]."""
    scores = torch.matmul(q, k.transpose(-1, -2)).masked_fill_(hidden, float("-inf"))
    lse = scores.logsumexp(-1)
    return Partial(torch.matmul((scores - lse[..., None]).exp_().nan_to_num_(0.0), v), lse)


def _two_calls(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, window: Tensor, span: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Merge two flash calls by their log-sum-exp: the history without a mask, and the chunk with a causal one.

    In the history, the G query heads of a key-value head are rows of one matrix, so keys are read once for all.
    """
    start = _stage(q, k, v, keys, values, window, span)
    chunk, heads, groups, width = q.shape
    rows = q.permute(1, 2, 0, 3).reshape(1, heads, groups * chunk, width)
    here_k, here_v = (t.transpose(0, 1).repeat_interleave(groups, 0)[None] for t in (k, v))
    here = _flash(rows.view(1, heads * groups, chunk, width), here_k, here_v, scale, causal=True)
    found = Partial(here.out.reshape(rows.shape), here.lse.reshape(rows.shape[:-1]))
    if start:
        found = merge(found, _flash(rows, keys[None, :, :start], values[None, :, :start], scale))
    return _as_chunk(found, q)


def _banded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    window: Tensor,
    span: Tensor,
    scale: float,
    sliding: int,
) -> tuple[Tensor, Tensor]:
    """Run flash attention with a band mask, over all keys from the first that the chunk's first token sees.

    The G query heads of a key-value head are rows of one matrix, so keys are read once for all.
    """
    start = _stage(q, k, v, keys, values, window, span)
    chunk, heads, groups, width = q.shape
    first, stop = max(0, start - sliding + 1), start + chunk
    position, key = torch.arange(start, stop)[:, None], torch.arange(first, stop)
    hidden = (key > position) | (key <= position - sliding)
    band = torch.zeros_like(hidden, dtype=q.dtype).masked_fill_(hidden, float("-inf")).repeat(groups, 1)
    rows = q.permute(1, 2, 0, 3).reshape(1, heads, groups * chunk, width)
    seen = keys[None, :, first:stop], values[None, :, first:stop]
    return _as_chunk(_flash(rows, *seen, scale, mask=band), q)


def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False, mask: Tensor | None = None) -> Partial:
    """Run torch's CPU flash attention on q, k, v [1, heads, rows, D]."""
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return Partial(*attend(q, k, v, 0.0, causal, attn_mask=mask, scale=scale))


def _as_chunk(found: Partial, q: Tensor) -> tuple[Tensor, Tensor]:
    """Reshape a result [1, H, G * T, D] to out [T, H, G, D] and lse [T, H, G]."""
    chunk, heads, groups, width = q.shape
    out = found.out.reshape(heads, groups, chunk, width).permute(2, 0, 1, 3).contiguous()
    return out, found.lse.reshape(heads, groups, chunk).permute(2, 0, 1).float().contiguous()


def _cuda(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, window: Tensor, span: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Run FlashAttention-2 if it supports the inputs, else blocks of keys. Neither materialises all scores."""
    if not _fits_flash(q):
        return reference(q, k, v, keys, values, window, span, scale, block=BLOCK)
    seen = _stage(q, k, v, keys, values, window, span) + len(q)
    chunk, heads, groups, width = q.shape
    rows = q.permute(1, 2, 0, 3).reshape(1, heads * groups, chunk, width)
    # For this operator "causal" aligns the last query with the last key, and query heads may share key-value heads.
    attend = torch.ops.aten._scaled_dot_product_flash_attention
    out, lse = attend(rows, keys[None, :, :seen], values[None, :, :seen], 0.0, True, False, scale=scale)[:2]
    return _as_chunk(Partial(out, lse), q)


def _fits_flash(q: Tensor) -> bool:
    width = q.shape[-1]
    return (
        q.itemsize == 2
        and width % 8 == 0
        and width <= MAX_WIDTH
        and torch.cuda.get_device_capability(q.device) >= (8, 0)
    )


def _cuda_sliding(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    window: Tensor,
    span: Tensor,
    scale: float,
    sliding: int,
) -> tuple[Tensor, Tensor]:
    return reference(q, k, v, keys, values, window, span, scale, sliding, BLOCK)


def _shape(q: Tensor, *_: Tensor | float) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    return out, q.new_empty(q.shape[:-1], dtype=torch.float32)


LIBRARY.impl("prefill_attend", _two_calls, "CompositeExplicitAutograd")
LIBRARY.impl("prefill_attend", _cuda, "CUDA")
LIBRARY.impl("prefill_attend_sliding", _banded, "CompositeExplicitAutograd")
LIBRARY.impl("prefill_attend_sliding", _cuda_sliding, "CUDA")
for name in ("prefill_attend", "prefill_attend_sliding", "prefill_attend_tiles"):
    register_fake(f"ringkv::{name}", _shape, lib=LIBRARY)
