"""The Triton kernels of attention over slots in the format zipcache, compiled for each GPU generation; no device."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

from ringkv.kernels.gpu.append_token import append_token
from ringkv.kernels.gpu.attend_buffer import attend_buffer, note_attention
from ringkv.kernels.gpu.attend_chunks import attend_chunks
from ringkv.kernels.gpu.decode_attend import decode_attend
from ringkv.kernels.gpu.splits import merge_splits
from tests.kernels.compiled import absent_device, stack_bytes, zip_step

pytestmark = [pytest.mark.usefixtures("own_cache"), pytest.mark.slow]  # compiles kernels for GPUs
KERNELS = (append_token, attend_buffer, attend_chunks, merge_splits, note_attention)
MOST_STACK = 16  # bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "dtype", "width", "groups"),
    [(80, torch.bfloat16, 128, 8), (90, torch.float32, 96, 4), (100, torch.float16, 80, 3)],
)
def test_all_kernels_compile_and_spill_next_to_nothing(
    capability: int, dtype: torch.dtype, width: int, groups: int, tmp_path: Path
) -> None:
    with absent_device(capability) as absent:
        inputs = zip_step(dtype, groups, width)
        out, lse = decode_attend(*inputs, 0.1)
        assert (out.shape, lse.shape) == (inputs[0].shape, inputs[0].shape[:3])
        launched = [name for name, _ in absent.launches]
        assert launched == [kernel.fn.__name__ for kernel in KERNELS[:3] + KERNELS[2:]]
        assert len(absent.made(attend_chunks)) == 2  # of 4 bits and of 2
        for made in absent.made(attend_chunks):
            assert ("mma.sync" in made.asm["ptx"]) == (dtype != torch.float32)
        if capability < 100:  # Triton's cuobjdump is older
            made = [one for kernel in KERNELS for one in absent.made(kernel)]
            assert max(stack_bytes(one, tmp_path) for one in made) <= MOST_STACK
        (written,) = absent.made(append_token)
        assert {"div.rn.f32", "sqrt.rn.f64"} <= {word for word in written.asm["ptx"].split() if ".rn." in word}
        assert "fma" not in written.asm["ptx"]  # torch rounds a product before it adds
