# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Random signs in Triton; `kernels.random_signs` has the same in torch."""

import triton
import triton.language as tl

from ringkv.kernels.random_signs import BITS as _BITS
from ringkv.kernels.random_signs import FACTORS as _FACTORS

FACTOR_0, FACTOR_1 = (tl.constexpr(factor) for factor in _FACTORS)
BITS_0, BITS_1, BITS_2 = (tl.constexpr(bits) for bits in _BITS)


@triton.jit
def random_signs(columns, WIDTH: tl.constexpr):
    """Return the signs 1.0 and -1.0 of these elements, int32, of a vector of WIDTH."""
    x = (columns + (WIDTH << 16)).to(tl.uint32)
    x ^= x >> BITS_0
    x = (x * FACTOR_0).to(tl.uint32)
    x ^= x >> BITS_1
    x = (x * FACTOR_1).to(tl.uint32)
    x ^= x >> BITS_2
    return 1.0 - 2.0 * (x >> 31).to(tl.float32)
