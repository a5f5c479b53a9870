"""The `ringkv` operator library: schemas here; implementations per device are beside the references.

Attention is an operator, not traced code, because it has a *run-time length*: the graph around it stays static while it
reads only live entries. The dispatcher is the registry: a CPU call runs the C++ kernel if one is loaded
(`native.load`), else the torch reference.
"""

import torch

LIBRARY = torch.library.Library("ringkv", "DEF")
_DECODE = (
    "(Tensor q, Tensor k, Tensor v, Tensor(a!) keys, Tensor(b!) values, Tensor slot, Tensor entry, Tensor live,"
    " float scale) -> (Tensor, Tensor)"
)
LIBRARY.define("decode_attend" + _DECODE)
LIBRARY.define("decode_attend_any" + _DECODE)  # for a head_dim that the C++ kernel does not support
_OPTIONAL = _DECODE.replace("Tensor k, Tensor v", "Tensor? k, Tensor? v")
_HEADS = _OPTIONAL.replace("Tensor slot", "Tensor places, Tensor slot")
LIBRARY.define("decode_attend_heads" + _HEADS)
LIBRARY.define("decode_attend_heads_any" + _HEADS)
_PAGES = _OPTIONAL.replace("Tensor slot", "Tensor(c!) digests, Tensor pins, Tensor counts, Tensor slot")
_ESTIMATED = "scale, Tensor({}!)? means=None)"  # of unread pages
for _suffix in ("", "_any"):
    LIBRARY.define(f"decode_attend_pages{_suffix}" + _PAGES.replace("scale)", _ESTIMATED.format("d")))
LIBRARY.define("read_ahead(Tensor[] planes, Tensor(a!) fetched) -> ()")
LIBRARY.define(
    "prefetch_pages(Tensor q, Tensor[] planes, Tensor digests, Tensor pins, Tensor counts, Tensor slot, Tensor live,"
    " float scale) -> Tensor"
)
_RECALL = _PAGES.replace(
    "Tensor slot",
    "Tensor(d!) resident_keys, Tensor(e!) resident_values, Tensor(f!) place_of, Tensor(g!) page_in,"
    " Tensor(h!) prefetched, Tensor(i!) fetched, Tensor slot",
)
LIBRARY.define("decode_attend_recall" + _RECALL)
LIBRARY.define("decode_attend_recall_any" + _RECALL)
LIBRARY.define(
    "prefetch_recall(Tensor q, Tensor host_keys, Tensor host_values, Tensor digests, Tensor pins, Tensor counts,"
    " Tensor(a!) keys, Tensor(b!) values, Tensor(c!) place_of, Tensor(d!) page_in, Tensor(e!) prefetched,"
    " Tensor(f!) fetched, Tensor slot, Tensor live, float scale) -> Tensor"
)
_ENCODED = (
    "(Tensor q, Tensor? k, Tensor? v, Tensor(a!) keys, Tensor(b!) key_scales, Tensor(c!) values,"
    " Tensor(d!) value_scales, Tensor centers, Tensor slot, Tensor entry, Tensor live, float scale)"
    " -> (Tensor, Tensor)"
)
for _name in ("int8", "fp8", "int4", "turbo4"):
    LIBRARY.define(f"decode_attend_{_name}" + _ENCODED)
    LIBRARY.define(f"decode_attend_{_name}_any" + _ENCODED)
_PAGES_INT8 = _ENCODED.replace("Tensor slot", "Tensor(e!) digests, Tensor pins, Tensor counts, Tensor slot")
for _suffix in ("", "_any"):
    LIBRARY.define(f"decode_attend_pages_int8{_suffix}" + _PAGES_INT8.replace("scale)", _ESTIMATED.format("f")))
_ZIP = (
    "(Tensor q, Tensor k, Tensor v, Tensor(a!) plain_keys, Tensor(b!) high_keys, Tensor(c!) low_keys,"
    " Tensor(d!) key_channels, Tensor(e!) attention, Tensor(f!) plain_values, Tensor(g!) high_values,"
    " Tensor(h!) low_values, Tensor(i!) value_factors, Tensor(j!) value_ranges, Tensor(k!) counts, Tensor slot,"
    " Tensor live, float scale) -> (Tensor, Tensor)"
)
LIBRARY.define("decode_attend_zip" + _ZIP)
LIBRARY.define("decode_attend_zip_any" + _ZIP)
_CACHE = (
    "(Tensor q, Tensor keys, Tensor values, Tensor slot, Tensor holes, Tensor live, float scale) -> (Tensor, Tensor)"
)
LIBRARY.define("cache_attend" + _CACHE)
LIBRARY.define("cache_attend_any" + _CACHE)
_PREFILL = (
    "(Tensor q, Tensor? k, Tensor? v, Tensor(a!) keys, Tensor(b!) values, Tensor(c!) window, Tensor segments,"
    " float scale) -> (Tensor, Tensor)"
)
LIBRARY.define("prefill_attend" + _PREFILL)
LIBRARY.define("prefill_attend_sliding" + _PREFILL.replace("scale)", "scale, int sliding)"))
LIBRARY.define("prefill_attend_tiles" + _PREFILL)  # on CPUs with bfloat16 dot products
_LATENT = (
    "(Tensor q, Tensor k, Tensor(a!) keys, Tensor slot, Tensor entry, Tensor live, float scale) -> (Tensor, Tensor)"
)
LIBRARY.define("decode_attend_latent" + _LATENT)
LIBRARY.define("decode_attend_latent_tiles" + _LATENT)
_ENCODED_LATENT = _LATENT.replace("keys,", "latents, Tensor(b!) scales, Tensor centers,")
for _name in ("int8", "fp8", "int4"):
    LIBRARY.define(f"decode_attend_latent_{_name}" + _ENCODED_LATENT)
    LIBRARY.define(f"decode_attend_latent_{_name}_tiles" + _ENCODED_LATENT)
_DIVIDED = _LATENT.replace("Tensor(a!) keys", "Tensor(a!)[] planes, str format").replace(
    "scale)", "scale, int[] heads, int values, str exchange)"
)
LIBRARY.define("decode_attend_latent_slots" + _DIVIDED)  # of ranks that divide the slots
LIBRARY.define(
    "prefill_attend_latent(Tensor q, Tensor k, Tensor(a!) keys, Tensor(b!) window, Tensor segments, float scale)"
    " -> (Tensor, Tensor)"
)
LIBRARY.define(
    "prefill_attend_expanded(Tensor q, Tensor k, Tensor(a!) keys, Tensor(b!) window, Tensor segments, Tensor key_up,"
    " Tensor value_up, float scale) -> (Tensor, Tensor)"
)
_MIXED = (
    "(Tensor q, Tensor k, Tensor(a!) keys, Tensor(b!) window, Tensor segments, Tensor(c!)[] slots, str format,"
    " Tensor slot, Tensor entry, Tensor live, Tensor key_up, Tensor value_up, float scale) -> (Tensor, Tensor)"
)
LIBRARY.define("mixed_attend_expanded" + _MIXED)
LIBRARY.define("mixed_attend_slots" + _MIXED.replace("scale)", "scale, int[] heads, int values, str exchange)"))
LIBRARY.define(
    "expanded_attend(Tensor q, Tensor latents, Tensor segments, Tensor key_up, Tensor value_up, float scale)"
    " -> (Tensor, Tensor)"
)
LIBRARY.define("by_head(Tensor x, Tensor weight, int? among=None) -> Tensor")
LIBRARY.define("hadamard(Tensor x, int block, int stride) -> Tensor")
LIBRARY.define("add_sink_logits(Tensor out, Tensor lse, Tensor sinks) -> Tensor")
LIBRARY.define("keep_queries(Tensor q, Tensor(a!) queries, Tensor slot, Tensor entry, Tensor live) -> ()")
LIBRARY.define("take_rows(Tensor staged, int lane, Tensor source, Tensor(a!) out) -> ()")
LIBRARY.define("window_votes(Tensor q, Tensor keys, int first, int last, float scale) -> Tensor")
LIBRARY.define(
    "linear(Tensor x, Tensor weight, Tensor? bias, Tensor? norm, float eps, Tensor? residual, ScalarType dtype,"
    " float offset) -> Tensor"
)
_EXPERTS = (
    "(Tensor x, Tensor chosen, Tensor weights, Tensor gate_up, Tensor down, int count, Tensor? norm, float eps,"
    " Tensor residual, str activation, float offset, Tensor? gate_up_bias, Tensor? down_bias) -> Tensor"
)
LIBRARY.define("experts" + _EXPERTS)
LIBRARY.define("experts_any" + _EXPERTS)  # for matrices that are not packed
LIBRARY.define(
    "route(Tensor logits, Tensor? correction, int experts, int chosen, bool is_sigmoid, bool normalised, float scale,"
    " int groups, int kept_groups, int best, int gates) -> (Tensor, Tensor, Tensor)"
)
LIBRARY.define(
    "gated(Tensor x, Tensor weight, Tensor? bias, Tensor? norm, float eps, str activation, float offset) -> Tensor"
)
LIBRARY.define(
    "sample(Tensor logits, Tensor forced, Tensor position, Tensor seed, Tensor temperature, Tensor tier,"
    " Tensor? allowed=None, Tensor? params=None, Tensor? bias=None, Tensor? in_prompt=None, Tensor? in_output=None,"
    " Tensor? ends=None) -> Tensor"
)
LIBRARY.define("top_logprobs(Tensor logits, Tensor tokens, Tensor scored) -> (Tensor, Tensor, Tensor)")
LIBRARY.define("truncate(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p) -> Tensor")
for _suffix in ("", "_memory"):  # of ranks that share memory
    LIBRARY.define(f"all_reduce{_suffix}(Tensor x) -> Tensor")
    LIBRARY.define(f"all_max{_suffix}(Tensor x) -> Tensor")
    LIBRARY.define(f"all_gather{_suffix}(Tensor x, int[] widths) -> Tensor")
    LIBRARY.define(f"columns_to_rows{_suffix}(Tensor x, int[] widths) -> Tensor")
    LIBRARY.define(f"rows_to_columns{_suffix}(Tensor x, int[] widths, int own) -> Tensor")
LIBRARY.define("connect_ranks(int descriptor, int rank, int count, int floats, float seconds) -> ()")
LIBRARY.define("fail_rank(int rank) -> ()")


def native_operators() -> list[str]:
    """Return our operators that have a C++ kernel loaded: only those are registered for the dispatch key CPU."""
    names: list[str] = torch._C._dispatch_get_registrations_for_dispatch_key("CPU")
    return sorted(name for name in names if name.startswith("ringkv::"))


def is_native(name: str) -> bool:
    """Whether a C++ kernel of this operator is loaded."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"ringkv::{name}", "CPU")
