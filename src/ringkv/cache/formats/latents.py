"""BY_GROUPS: the storage formats of latents by name: those of vectors, by groups. See `kernels.encoded_latents`."""

from collections.abc import Mapping, Sequence

from ringkv.base.cache_spec import LATENT_GROUP, PlaneFormat
from ringkv.cache.formats import fp8, int4, int8
from ringkv.cache.formats.plain import PLAIN
from ringkv.cache.formats.storage import Part, StorageFormat, encoded
from ringkv.kernels.encoded_latents import ATTEND, ENCODINGS


def _by_groups(name: PlaneFormat, parts: Sequence[Part]) -> StorageFormat:
    elements, scale = parts

    def scales(width: int) -> tuple[int, ...]:
        return -(-width // LATENT_GROUP), *scale.shape(LATENT_GROUP)

    return encoded(ENCODINGS[name], (elements, Part(scale.dtype, scales)), ATTEND[name])


BY_GROUPS: Mapping[PlaneFormat, StorageFormat] = {
    "plain": PLAIN._replace(attend=ATTEND["plain"]),
    "int8": _by_groups("int8", int8.PARTS),
    "fp8": _by_groups("fp8", fp8.PARTS),
    "int4": _by_groups("int4", int4.PARTS),
}
