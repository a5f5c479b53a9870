"""Key-value heads and head_dim of Gemma 4's global layers, in either spelling of config.json. No torch.

Published files have `global_head_dim` and `num_global_key_value_heads`; transformers writes `per_layer_config`.
"""

from collections.abc import Collection

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.shown import shown_names
from ringkv.models.fields import Raw, count, flag, table

HEADS, WIDTH = "num_key_value_heads", "head_dim"
GLOBAL_WIDTH = 512  # global_head_dim if config.json leaves it out


def global_heads(raw: Raw, local: Collection[int]) -> tuple[int, int]:
    """Return key-value heads and head_dim of the layers that are not `local`."""
    found = _listed(raw, local) if table(raw, "per_layer_config") else _named(raw)
    heads, (kv_heads, width) = count(raw, "num_attention_heads"), found
    if heads % kv_heads or width % 2:
        raise BadWeights(
            f"config.json has {heads} attention heads over {kv_heads} key-value heads of {width} elements in global "
            "layers, which does not fit; fetch config.json again"
        )
    return found


def _named(raw: Raw) -> tuple[int, int]:
    heads = count(raw, HEADS)
    if flag(raw, "attention_k_eq_v"):
        heads = count(raw, "num_global_key_value_heads", heads)
    return heads, count(raw, "global_head_dim", GLOBAL_WIDTH)


def _listed(raw: Raw, local: Collection[int]) -> tuple[int, int]:
    """Return what `per_layer_config` says of each global layer. Other layers must be as the model's other settings."""
    given, usual = _unpadded(table(raw, "per_layer_config")), (count(raw, HEADS), count(raw, WIDTH))
    each = [_sizes(table(given, str(at)), usual) for at in range(count(raw, "num_hidden_layers"))]
    everywhere = {sizes for at, sizes in enumerate(each) if at not in local}
    if not set(given) <= {str(at) for at in range(len(each))} or any(each[at] != usual for at in local):
        raise _refused("other layers than those with full_attention")
    if len(everywhere) != 1:
        raise _refused("different sizes in layers with full_attention")
    return everywhere.pop()


def _unpadded(given: Raw) -> Raw:
    """Return the same by plain numbers of layers: with ten layers or more, transformers writes "05"."""
    return {name.lstrip("0") or "0": own for name, own in given.items()}


def _sizes(own: Raw, usual: tuple[int, int]) -> tuple[int, int]:
    if others := set(own) - {HEADS, WIDTH}:
        raise _refused(shown_names(sorted(others)))
    return count(own, HEADS, usual[0]), count(own, WIDTH, usual[1])


def _refused(what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"per_layer_config with {what} is not implemented; ringkv supports one {HEADS} and one {WIDTH} for all layers "
        "with full_attention"
    )
