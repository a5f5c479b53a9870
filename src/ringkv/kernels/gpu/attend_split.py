# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The first of decode attention's two kernels: one split of one key-value head of one slot.

B slots, H key-value heads, G query heads each, C entries, D head_dim, S splits. The G queries are rows of one
tensor-core tile, padded to 16, so each key and value is read once for all of them. Online softmax (Milakov and
Gimelshein, arXiv 1805.02867); splits along the keys as in Flash-Decoding (Dao et al., 2023).
"""

import triton
import triton.language as tl


@triton.jit
def share(live, splits, BLOCK: tl.constexpr):
    """Entries of each split, whole blocks; the last split that has any may have fewer."""
    return tl.cdiv(tl.cdiv(live, splits), BLOCK) * BLOCK


@triton.jit(do_not_specialize=["heads", "groups", "splits"])
def attend_split(
    q_at,
    k_at,
    v_at,
    keys_at,
    values_at,
    entry_at,
    live_at,
    part_at,  # float32 [B, H, S, G, D], normalised
    lse_at,  # float32 [B, H, S, G], log2 of the sum of exponentials
    q_slot,  # strides, in numbers
    q_head,
    q_group,
    k_slot,
    k_head,
    v_slot,
    v_head,
    plane_slot,
    plane_head,
    scale,  # log2(e) / sqrt(D)
    heads,
    groups,
    splits,
    ROWS: tl.constexpr,  # at least `groups`
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH, padded to a power of two
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,  # products of float32 copies: Triton's interpreter cannot multiply bfloat16
):
    split, head, slot = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    live = tl.load(live_at + slot)
    entries = share(live, splits, BLOCK)
    first, stop = split * entries, tl.minimum((split + 1) * entries, live)
    if first >= stop:
        return
    entry = tl.load(entry_at + slot)
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    real = column < WIDTH
    real_q = (row < groups)[:, None] & real[None, :]
    q = tl.load(q_at + slot * q_slot + head * q_head + row[:, None] * q_group + column[None, :], mask=real_q, other=0.0)
    if WIDE:
        q = q.to(tl.float32)
    plane = slot.to(tl.int64) * plane_slot + head.to(tl.int64) * plane_head  # beyond 2**31 numbers in a large cache
    keys, values = keys_at + plane, values_at + plane

    # The first split brings the new token into the softmax and into the cache. All tiles leave its entry out, so that
    # nobody reads what is being written; and nobody multiplies by what stood there before, which may be a NaN.
    new_k = tl.load(k_at + slot * k_slot + head * k_head + column, mask=real, other=0.0)
    new_v = tl.load(v_at + slot * v_slot + head * v_head + column, mask=real, other=0.0)
    is_first = split == 0
    tl.store(keys + entry * WIDTH + column, new_k, mask=real & is_first)
    tl.store(values + entry * WIDTH + column, new_v, mask=real & is_first)
    score = tl.sum(q.to(tl.float32) * new_k.to(tl.float32)[None, :], 1) * scale
    top = tl.where(is_first, score, float("-inf"))
    total = tl.where(is_first, tl.full((ROWS,), 1.0, tl.float32), 0.0)
    acc = tl.where(is_first, tl.zeros((ROWS, COLUMNS), tl.float32) + new_v.to(tl.float32)[None, :], 0.0)

    for start in range(first, stop, BLOCK):
        at = start + tl.arange(0, BLOCK)
        seen = (at < stop) & (at != entry)
        mask = seen[:, None] & real[None, :]
        tile = at[:, None] * WIDTH + column[None, :]
        k = tl.load(keys + tile, mask=mask, other=0.0)
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, 1))
        against = tl.where(highest == float("-inf"), 0.0, highest)  # a tile that holds nothing but the new entry
        weights = tl.exp2(scores - against[:, None])
        shrink = tl.exp2(top - against)
        total = total * shrink + tl.sum(weights, 1)
        v = tl.load(values + tile, mask=mask, other=0.0)
        acc = tl.dot(weights.to(v.dtype).to(q.dtype), v.to(q.dtype), acc * shrink[:, None], input_precision="ieee")
        top = highest

    nothing = total == 0.0
    place = ((slot.to(tl.int64) * heads + head) * splits + split) * groups  # beyond 2**31 numbers with many slots
    part = acc / tl.where(nothing, 1.0, total)[:, None]
    tl.store(part_at + (place + row)[:, None] * WIDTH + column[None, :], part, mask=real_q)
    lse = tl.where(nothing, float("-inf"), top + tl.log2(tl.where(nothing, 1.0, total)))
    tl.store(lse_at + place + row, lse, mask=row < groups)
