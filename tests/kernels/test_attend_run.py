"""Several tokens of each row in one call of decode attention, against as many calls with one token of each."""

import pytest
import torch
from torch import Tensor

from ringkv.base.cache_spec import PlaneFormat
from ringkv.kernels import decode_attend_reference
from ringkv.kernels.attended import Attended, in_turn
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.slots import Rows, Slots, mapped
from tests.kernels.steps import FORMATS, HEADS, READINGS, Attend, Step

pytestmark = pytest.mark.usefixtures("compiled")
SLOT = torch.tensor([3, 0, 2, 4, 1], dtype=torch.int32)
# A slot that grows into its second block; a free one; one whose ring wraps, so that tokens overwrite entries of the
# first block; one that grows from its first entry on and stops after two tokens; one that grows within its third block.
ENTRY = torch.tensor([[254, 255, 256, 257], [0] * 4, [299, 4, 5, 6], [0, 1, 0, 0], [513, 514, 515, 516]]).int()
LIVE = torch.tensor([[255, 256, 257, 258], [0] * 4, [300, 300, 300, 300], [1, 2, 0, 0], [514, 515, 516, 517]]).int()
TOKENS = ENTRY.shape[1]


class Run:
    """Slots, and T tokens for each row: q [R * T, H, G, D], k and v [R * T, H, D]."""

    def __init__(self, encoding: PlaneFormat, reading: str, dtype: torch.dtype, width: int, groups: int) -> None:
        step = Step(encoding, reading, dtype, width, groups)
        self.slots, self.scale = step.slots, step.scale
        rows = len(SLOT) * TOKENS
        self.q = torch.randn(rows, HEADS, groups, width).to(dtype)
        self.k, self.v = (torch.randn(rows, HEADS, width).to(dtype) for _ in "kv")

    def together(self, attend: Attend) -> tuple[Attended, Slots]:
        slots = mapped(self.slots, Tensor.clone)
        return Attended(*attend(self.q, self.k, self.v, slots, Rows(SLOT, ENTRY, LIVE), self.scale)), slots

    def one_by_one(self, attend: Attend) -> tuple[Attended, Slots]:
        slots = mapped(self.slots, Tensor.clone)
        results = []
        for token in range(TOKENS):
            q, k, v = (x[token::TOKENS].contiguous() for x in (self.q, self.k, self.v))
            results.append(attend(q, k, v, slots, Rows(SLOT, ENTRY[:, token], LIVE[:, token]), self.scale))
        out, lse = zip(*results, strict=True)
        return Attended(torch.stack(out, 1).flatten(0, 1), torch.stack(lse, 1).flatten(0, 1)), slots


def assert_same(run: Run, attend: Attend, steps: Attend) -> None:
    (together, after), (alone, want) = run.together(attend), run.one_by_one(steps)
    assert torch.equal(together.out, alone.out)
    assert torch.equal(together.lse, alone.lse)
    assert all(torch.equal(*pair) for pair in zip(after.planes, want.planes, strict=True))


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("encoding", FORMATS)
@pytest.mark.parametrize(
    ("dtype", "width", "groups"),
    [
        (torch.bfloat16, 64, 3),
        (torch.bfloat16, 128, 6),  # more queries than rows of a tile
        (torch.bfloat16, 32, 16),
        (torch.float32, 96, 1),
        (torch.float16, 40, 5),  # a width without a C++ kernel
    ],
)
def test_several_tokens_of_a_row_have_the_bits_of_as_many_steps(
    encoding: PlaneFormat, reading: str, dtype: torch.dtype, width: int, groups: int
) -> None:
    run = Run(encoding, reading, dtype, width, groups)
    assert_same(run, decode_attend, decode_attend)


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads_gives_the_same_bits(threads: int) -> None:
    run, before = Run("plain", "every", torch.bfloat16, 64, 3), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_same(run, decode_attend, decode_attend)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("encoding", FORMATS)
def test_the_reference_of_an_operator_takes_several_tokens_too(encoding: PlaneFormat) -> None:
    run = Run(encoding, "every", torch.float32, 64, 3)

    def reference(q: Tensor, k: Tensor, v: Tensor, slots: Slots, rows: Rows, scale: float) -> tuple[Tensor, Tensor]:
        return torch.ops.ringkv.decode_attend.reference(q, k, v, *slots.arguments, *rows, slots.encoding, scale)

    assert_same(run, reference, decode_attend_reference.decode_attend)


def test_tokens_whose_vectors_another_layer_has_written_attend_to_them() -> None:
    run = Run("plain", "every", torch.bfloat16, 64, 3)
    grown = Rows(SLOT[[0, 4]], ENTRY[[0, 4]], LIVE[[0, 4]])  # nothing of these is overwritten
    chosen = torch.cat([torch.arange(row * TOKENS, (row + 1) * TOKENS) for row in (0, 4)])
    q, k, v = (x[chosen] for x in (run.q, run.k, run.v))
    written = decode_attend(q, k, v, run.slots, grown, run.scale)
    read = decode_attend(q, None, None, run.slots, grown, run.scale)
    assert torch.equal(read.out, written.out)


def test_kernels_get_the_numbers_of_each_token_as_arrays() -> None:
    strides: list[int] = []

    def attend(q: Tensor, k: None, v: None, rows: Rows) -> tuple[Tensor, Tensor]:
        strides.extend(number.stride(0) for number in rows)
        return q, q[..., 0]

    q = torch.arange(SLOT.numel() * TOKENS)[:, None]
    out, _ = in_turn(attend, q, None, None, Rows(SLOT, ENTRY, LIVE))
    assert strides == [1] * 3 * TOKENS
    assert torch.equal(out, q)


@pytest.mark.parametrize("rows", [1, 5])
def test_results_are_contiguous_as_compiled_graphs_expect(rows: int) -> None:
    run = Run("plain", "every", torch.bfloat16, 64, 3)
    numbers = Rows(SLOT[:rows], ENTRY[:rows], LIVE[:rows])
    q, k, v = (x[: rows * TOKENS] for x in (run.q, run.k, run.v))
    attended = decode_attend(q, k, v, run.slots, numbers, run.scale)
    assert all(x.is_contiguous() for x in attended)
