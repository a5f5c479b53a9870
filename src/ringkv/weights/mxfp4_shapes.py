"""mxfp4_shapes: names and shapes of matrices in MXFP4, as gpt-oss' checkpoints have them. No torch.

For E experts a matrix is two tensors, blocks uint8 [E, out, in / 32, 16] and exponents uint8 [E, out, in / 32].
"""

from collections.abc import Mapping

BLOCKS, EXPONENTS = "_blocks", "_scales"  # end the names of a matrix's two tensors
BYTES = 16  # of a block

Shapes = Mapping[str, tuple[int, ...]]


def unpacked_shapes(shapes: Shapes) -> Shapes:
    """Return shapes with one tensor [E, in, out], as unquantised checkpoints have it, for blocks and exponents."""
    candidates = ((name.removesuffix(BLOCKS), shape) for name, shape in shapes.items() if name.endswith(BLOCKS))
    packed = {
        name: shape
        for name, shape in candidates
        if len(shape) == 4 and shape[-1] == BYTES and shapes.get(f"{name}{EXPONENTS}") == shape[:-1]
    }
    parts = {f"{name}{end}" for name in packed for end in (BLOCKS, EXPONENTS)}
    unpacked = {name: (count, 2 * BYTES * blocks, rows) for name, (count, rows, blocks, _) in packed.items()}
    return {name: shape for name, shape in shapes.items() if name not in parts} | unpacked
