"""shapes: compares the tensors that a file has with those that its configuration needs. No torch.

In MXFP4, as gpt-oss' checkpoints have it, a matrix of E experts is two tensors: blocks uint8 [E, out, in / 32, 16] and
exponents uint8 [E, out, in / 32].
"""

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase

from ringkv.base.errors import BadWeights
from ringkv.base.shown import shown, shown_names

BLOCKS, EXPONENTS = "_blocks", "_scales"  # end the names of a matrix's two tensors in MXFP4
BYTES = 16  # of a block

Shapes = Mapping[str, tuple[int, ...]]


def check_shapes(stored: Shapes, expected: Shapes, ignorable: Collection[str] = ()) -> None:
    """Raise BadWeights that names missing, unexpected and misshapen tensors.

    `ignorable`: names, or patterns such as `*.rotary_emb.inv_freq`, that may exist and are not loaded.
    """
    missing = [name for name in expected if name not in stored]
    extra = [
        name for name in stored if name not in expected and not any(fnmatchcase(name, pattern) for pattern in ignorable)
    ]
    misshapen = [
        f"{name} {shown(list(stored[name]))} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in stored and stored[name] != shape
    ]
    faults = [
        f"{len(names)} {fault}: {wrong}"
        for fault, names, wrong in (
            ("missing", missing, shown_names(missing)),
            ("not expected", extra, shown_names(extra)),
            ("misshapen", misshapen, _first(misshapen)),
        )
        if names
    ]
    if faults:
        raise BadWeights(f"the checkpoint's tensors do not match config.json ({'; '.join(faults)}); fetch it again")


def _first(sentences: list[str], limit: int = 5) -> str:
    return ", ".join(sentences[:limit]) + (", ..." if len(sentences) > limit else "")


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
