# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Writing of a step's keys and values, or of its latents, to encoded slots: the first kernel of a step over them.

B rows of a step, S slots, H key-value heads, C entries, D elements of a vector, E first keys that a slot keeps exactly.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.tiles import vector_of


@triton.jit
def write_token(
    new,  # keys and values [B, H, D], with the strides of a row and a head
    planes,  # of keys, their scales, values, their scales: [S, H, C, ...], with the strides of a slot and a head
    centers,  # float32 [S, H, D + E D], with the strides of a slot and a head
    rows,
    index,  # see `readings`
    READ: tl.constexpr,
    STORE: tl.constexpr,  # of `encode_vector`
    SIZE: tl.constexpr,  # elements of the tensors of keys that an entry has
    SCALES: tl.constexpr,  # and of those of scales
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH, padded to a power of two
    STAGES: tl.constexpr,
):
    head, row = tl.program_id(0), tl.program_id(1)
    if tl.load(rows.live + row) == 0:
        return
    slot = tl.load(rows.slot + row).to(tl.int64)
    entry = READ.newest(index, slot, head, tl.load(rows.entry + row))
    column = tl.arange(0, COLUMNS)
    real = column < WIDTH
    center = tl.load(vector_of(centers, slot, head) + column, mask=real, other=0.0)
    k = tl.load(vector_of(new[0], row, head) + column, mask=real, other=0.0).to(tl.float32) - center
    v = tl.load(vector_of(new[1], row, head) + column, mask=real, other=0.0).to(tl.float32)
    keys, key_scales = READ.start(index, planes[0], slot, head, SIZE), READ.start(index, planes[1], slot, head, SCALES)
    values = READ.start(index, planes[2], slot, head, SIZE)
    value_scales = READ.start(index, planes[3], slot, head, SCALES)
    STORE(k, keys, key_scales, entry, WIDTH, COLUMNS, STAGES)
    STORE(v, values, value_scales, entry, WIDTH, COLUMNS, STAGES)


@triton.jit
def write_latent(
    k,  # [B, 1, D], with the stride of a row
    planes,  # latents and scales [S, 1, C, ...], each with the stride of a slot
    centers,  # float32 [S, 1, D + E D], with the stride of a slot
    rows,
    STORE: tl.constexpr,  # of `encode_vector`
    PACK: tl.constexpr,  # elements of a latent in a stored one
    SCALES: tl.constexpr,  # of a group
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,  # elements of a group
    LAST_COLUMNS: tl.constexpr,  # of the last one, padded to a power of two
    WHOLE_STAGES: tl.constexpr,  # of the rotation of the other groups
    STAGES: tl.constexpr,  # and of the last one
):
    """Write latents group by group."""
    group, row = tl.program_id(0), tl.program_id(1)
    if tl.load(rows.live + row) == 0:
        return
    GROUPS: tl.constexpr = (WIDTH + GROUP - 1) // GROUP
    LAST: tl.constexpr = WIDTH - (GROUPS - 1) * GROUP
    slot, entry = tl.load(rows.slot + row).to(tl.int64), tl.load(rows.entry + row)
    first = group * GROUP
    vector, center = k[0] + row * k[1] + first, centers[0] + slot * centers[1] + first
    latents = planes[0][0] + slot * planes[0][1] + entry * (WIDTH // PACK) + first // PACK
    scales = planes[1][0] + slot * planes[1][1] + (entry * GROUPS + group) * SCALES
    if group < GROUPS - 1:
        _write_group(vector, center, latents, scales, STORE, GROUP, GROUP, WHOLE_STAGES)
    else:
        _write_group(vector, center, latents, scales, STORE, LAST, LAST_COLUMNS, STAGES)


@triton.jit
def _write_group(
    k,
    center,
    latents,
    scales,
    STORE: tl.constexpr,
    WIDTH: tl.constexpr,  # of the group
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    column = tl.arange(0, COLUMNS)
    real = column < WIDTH
    vector = tl.load(k + column, mask=real, other=0.0).to(tl.float32)
    STORE(vector - tl.load(center + column, mask=real, other=0.0), latents, scales, 0, WIDTH, COLUMNS, STAGES)
