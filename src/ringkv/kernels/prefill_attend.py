"""prefill_attend: stage one chunk of a prompt, and attend causally to all that is staged.

T tokens of the chunk, H key-value heads, G query heads per key-value head, S staged tokens, D head_dim, W window.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ringkv.kernels.library import LIBRARY
from ringkv.kernels.packing import fits_tiles


def prefill_attend(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, window: Tensor, span: Tensor, sliding: int = 0
) -> Tensor:
    """Stage k, v [T, H, D] and return causal attention of q [T, H, G, D] to tokens 0 .. start+T-1.

    keys, values [H, S, D] and window [H, G, W, D] change in place. span int64 [2] on the CPU: the chunk's first
    position, and the prompt's length. The window keeps the prompt's last W queries, right-aligned; the tokens beyond
    the length are padding, which no true token sees. sliding: a token sees so many, itself included; 0 is all.
    """
    if sliding:
        banded: Tensor = torch.ops.ringkv.prefill_attend_sliding(q, k, v, keys, values, window, span, sliding)
        return banded
    # A compiled graph that calls the tiles' operator by its name does not come back to Python in every layer.
    tiles = fits_tiles(q, "prefill_attend_tiles")
    attend = torch.ops.ringkv.prefill_attend_tiles if tiles else torch.ops.ringkv.prefill_attend
    out: Tensor = attend(q, k, v, keys, values, window, span)
    return out


def _stage(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, window: Tensor, span: Tensor) -> int:
    """Write the chunk into the staging lane; the chunk's first position."""
    start, length = (int(n) for n in span.tolist())
    stop, first = start + q.shape[0], length - window.shape[2]
    keys[:, start:stop] = k.transpose(0, 1)
    values[:, start:stop] = v.transpose(0, 1)
    low, high = max(start, first), min(stop, length)
    if low < high:
        window[:, :, low - first : high - first] = q[low - start : high - start].permute(1, 2, 0, 3)
    return start


def reference(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, window: Tensor, span: Tensor, sliding: int = 0
) -> Tensor:
    """The same with the scores written out, in float32."""
    start = _stage(q, k, v, keys, values, window, span)
    chunk = q.shape[0]
    seen = keys[:, None, : start + chunk].float(), values[:, None, : start + chunk].float()
    scores = torch.matmul(q.permute(1, 2, 0, 3).float() * q.shape[-1] ** -0.5, seen[0].transpose(-1, -2))
    hidden = torch.ones(chunk, start + chunk, dtype=torch.bool, device=q.device).triu(start + 1)
    if sliding:
        hidden |= torch.ones_like(hidden).tril(start - sliding)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.matmul(weights, seen[1]).permute(2, 0, 1, 3).to(q.dtype)


def _two_calls(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, window: Tensor, span: Tensor) -> Tensor:
    """Two flash calls merged by their log-sum-exp: the history needs no mask, and the causal part is one chunk wide.

    In the history, the G query heads of a key-value head are rows of one matrix: keys are read once for all.
    """
    start = _stage(q, k, v, keys, values, window, span)
    chunk, heads, groups, width = q.shape
    rows = q.permute(1, 2, 0, 3).reshape(1, heads, groups * chunk, width)
    here_k, here_v = (t.transpose(0, 1).repeat_interleave(groups, 0)[None] for t in (k, v))
    out, lse = _flash(rows.view(1, heads * groups, chunk, width), here_k, here_v, causal=True)
    if start:
        past, past_lse = _flash(rows, keys[None, :, :start], values[None, :, :start], causal=False)
        out = _merge(out.reshape(rows.shape), lse.reshape(rows.shape[:-1]), past, past_lse)
    return out.view(heads, groups, chunk, width).permute(2, 0, 1, 3).contiguous()


def _flash(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """torch's CPU flash attention with its log-sum-exp, as [1, heads, rows]."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    return out, lse


def _merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> Tensor:
    """Softmax over the union of two disjoint sets of keys, from the softmax over each."""
    share = torch.sigmoid(other_lse.float() - lse.float())[..., None]
    return (out.float() + share * (other.float() - out.float())).to(out.dtype)


def _cuda(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, window: Tensor, span: Tensor) -> Tensor:
    from torch.nn.attention.bias import causal_lower_right  # imports torch's tracer, which takes a second

    start = _stage(q, k, v, keys, values, window, span)
    chunk, heads, groups, width = q.shape
    seen = start + chunk
    rows = q.permute(1, 2, 0, 3).reshape(1, heads * groups, chunk, width)
    past = keys[None, :, :seen], values[None, :, :seen]
    out = F.scaled_dot_product_attention(rows, *past, attn_mask=causal_lower_right(chunk, seen), enable_gqa=True)
    return out.view(heads, groups, chunk, width).permute(2, 0, 1, 3).contiguous()


def _banded(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, window: Tensor, span: Tensor, sliding: int
) -> Tensor:
    """Attention with a band mask over the keys that the chunk's first token sees, and all after them.

    The G query heads of a key-value head are rows of one matrix: keys are read once for all.
    """
    start = _stage(q, k, v, keys, values, window, span)
    chunk, heads, groups, width = q.shape
    first, stop = max(0, start - sliding + 1), start + chunk
    position, of = torch.arange(start, stop, device=q.device)[:, None], torch.arange(first, stop, device=q.device)
    band = (of <= position) & (of > position - sliding)
    rows = q.permute(1, 2, 0, 3).reshape(1, heads, groups * chunk, width)
    seen = keys[None, :, first:stop], values[None, :, first:stop]
    out = F.scaled_dot_product_attention(rows, *seen, attn_mask=band.repeat(groups, 1))
    return out.view(heads, groups, chunk, width).permute(2, 0, 1, 3).contiguous()


def _shape(q: Tensor, *_: Tensor) -> Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)


LIBRARY.impl("prefill_attend", _two_calls, "CompositeExplicitAutograd")
LIBRARY.impl("prefill_attend", _cuda, "CUDA")
LIBRARY.impl("prefill_attend", _shape, "Meta")
LIBRARY.impl("prefill_attend_sliding", _banded, "CompositeExplicitAutograd")
LIBRARY.impl("prefill_attend_sliding", _shape, "Meta")
LIBRARY.impl("prefill_attend_tiles", _shape, "Meta")
