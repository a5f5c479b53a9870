"""The PTX instructions that take elements out of 16-bit words, executed by hand for every word."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

from ringkv.kernels.gpu import elements

WORDS = np.arange(1 << 16, dtype=np.uint32)
BYTES = torch.from_numpy(WORDS.astype(np.uint16).view(np.uint8).reshape(-1, 2))
INT8 = BYTES.view(torch.int8).double().numpy()
NIBBLES = np.stack([16.0 + (WORDS >> 4 * n & 15) for n in range(4)], 1)


def run(ptx: str, registers: np.ndarray, results: tuple[str, ...] = ("$0",)) -> list[np.ndarray]:
    """Execute the instructions on uint32 [N], whose name follows those of the results."""
    state = {f"${len(results)}": registers}

    def value(name: str) -> np.ndarray:
        return state[name] if name in state else np.full_like(registers, int(name, 0))

    for instruction in ptx.strip("{} ").split(";"):
        operation, _, rest = instruction.strip().partition(" ")
        to, *names = rest.split(", ")
        if operation not in ("", ".reg"):
            state[to] = OPERATIONS[operation](*map(value, names))
    return [state[result] for result in results]


def lop3(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Look up each bit of the result in a table of eight bits."""
    found = np.zeros_like(a)
    for bit in range(32):
        index = (a >> bit & 1) * 4 + (b >> bit & 1) * 2 + (c >> bit & 1)
        found |= (table >> index & 1) << bit
    return found


def subtract_halves(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.view(np.float16) - b.view(np.float16)).view(np.uint32)


OPERATIONS = {
    "mov.b32": lambda a: a,
    "and.b32": np.bitwise_and,
    "shl.b32": np.left_shift,
    "shr.b32": np.right_shift,
    "lop3.b32": lop3,
    "sub.rn.f16x2": subtract_halves,
}


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [*zip(elements.PTX_INT8.value, INT8.T, strict=True), *zip(elements.PTX_NIBBLE.value, NIBBLES.T, strict=True)],
)
def test_both_halves_of_a_register_are_the_elements_of_their_word(instructions: str, expected: np.ndarray) -> None:
    others = np.random.default_rng(0).permutation(WORDS)
    (found,) = run(instructions, WORDS | others << 16)
    compare(found, others, expected)


def compare(registers: np.ndarray, others: np.ndarray, expected: np.ndarray) -> None:
    """Compare the float16 of registers whose lower halves are of WORDS, the upper ones of `others`."""
    found = registers.view(np.float16).reshape(-1, 2)
    for half, word in ((0, WORDS), (1, others)):
        known = ~np.isnan(expected[word])  # a vector with NaN has a scale that is NaN
        np.testing.assert_array_equal(found[known, half].astype(np.float64), expected[word][known])
