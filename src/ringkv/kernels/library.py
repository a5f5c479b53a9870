"""The `ringkv` operator library: schemas here; implementations per device are beside the references.

Attention is an operator, not traced code, because it has a *run-time length*: the graph around it stays static while it
reads only live entries. The dispatcher is the registry: a CPU call runs the C++ kernel if one is loaded
(`native.load`), else the torch reference.
"""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, TypeVar, get_type_hints

import torch
from torch.library import register_fake

T = TypeVar("T")
LIBRARY = torch.library.Library("ringkv", "DEF")
_DECODE = (
    "(Tensor q, Tensor? k, Tensor? v, Tensor(a!)[] tensors, Tensor? centers, Tensor? places, int pages, int residents,"
    " Tensor slot, Tensor entry, Tensor live, str encoding, float scale) -> (Tensor, Tensor)"
)  # tensors: planes, then those of pages and of residents; compiled graphs cannot pass an empty list
LIBRARY.define("decode_attend" + _DECODE)
LIBRARY.define("decode_attend.reference" + _DECODE)  # what the C++ kernel calls for widths that it does not support
LIBRARY.define("read_ahead(Tensor[] planes, Tensor(a!) fetched) -> ()")
_PREFILL = (
    "(Tensor q, Tensor? k, Tensor? v, Tensor(a!) keys, Tensor(b!) values, Tensor(c!) window, Tensor segments,"
    " float scale) -> (Tensor, Tensor)"
)
LIBRARY.define("prefill_attend" + _PREFILL)
LIBRARY.define("prefill_attend_sliding" + _PREFILL.replace("scale)", "scale, int sliding)"))
LIBRARY.define("prefill_attend_tiles" + _PREFILL)  # on CPUs with bfloat16 dot products
LIBRARY.define(
    "decode_attend_latent_slots(Tensor q, Tensor k, Tensor(a!)[] planes, Tensor? centers, Tensor slot, Tensor entry,"
    " Tensor live, str encoding, float scale, int[] heads, int values, str exchange) -> (Tensor, Tensor)"
)  # of ranks that divide the slots
LIBRARY.define(
    "prefill_attend_latent(Tensor q, Tensor k, Tensor(a!) keys, Tensor(b!) window, Tensor segments, float scale)"
    " -> (Tensor, Tensor)"
)
LIBRARY.define(
    "prefill_attend_expanded(Tensor q, Tensor k, Tensor(a!) keys, Tensor(b!) window, Tensor segments, Tensor key_up,"
    " Tensor value_up, float scale) -> (Tensor, Tensor)"
)
LIBRARY.define(
    "mixed_attend_expanded(Tensor q, Tensor k, Tensor(a!) keys, Tensor(b!) window, Tensor segments,"
    " Tensor(c!)[] planes, Tensor? centers, Tensor slot, Tensor entry, Tensor live, str encoding, Tensor key_up,"
    " Tensor value_up, float scale, int[] heads, int values, str exchange) -> (Tensor, Tensor)"
)
LIBRARY.define(
    "expanded_attend(Tensor q, Tensor latents, Tensor segments, Tensor key_up, Tensor value_up, float scale)"
    " -> (Tensor, Tensor)"
)
LIBRARY.define("by_head(Tensor x, Tensor weight, int? among=None) -> Tensor")
LIBRARY.define("hadamard(Tensor x, int block, int stride) -> Tensor")
LIBRARY.define("add_sink_logits(Tensor out, Tensor lse, Tensor sinks) -> Tensor")
LIBRARY.define("keep_queries(Tensor q, Tensor(a!) queries, Tensor slot, Tensor entry, Tensor live) -> ()")
LIBRARY.define("take_rows(Tensor staged, int lane, Tensor source, Tensor(a!) out) -> ()")
LIBRARY.define("window_votes(Tensor q, Tensor keys, float scale) -> Tensor")
LIBRARY.define(
    "linear(Tensor x, Tensor weight, Tensor? bias, Tensor? norm, float eps, Tensor? residual, ScalarType dtype,"
    " float offset) -> Tensor"
)
_EXPERTS = (
    "(Tensor x, Tensor chosen, Tensor weights, Tensor gate_up, Tensor down, int experts, str activation,"
    " Tensor? gate_up_bias, Tensor? down_bias, Tensor residual, Tensor? norm, float eps, float offset) -> Tensor"
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
    " Tensor params, Tensor? allowed=None, Tensor? bias=None, Tensor? in_prompt=None, Tensor? in_output=None,"
    " Tensor? ends=None) -> Tensor"
)
LIBRARY.define("top_logprobs(Tensor logits, Tensor tokens, Tensor scored) -> (Tensor, Tensor, Tensor)")
for _suffix in ("", "_memory"):  # of ranks that share memory
    LIBRARY.define(f"all_reduce{_suffix}(Tensor x) -> Tensor")
    LIBRARY.define(f"all_max{_suffix}(Tensor x) -> Tensor")
    LIBRARY.define(f"all_gather{_suffix}(Tensor x, int[] widths) -> Tensor")
    LIBRARY.define(f"columns_to_rows{_suffix}(Tensor x, int[] widths) -> Tensor")
    LIBRARY.define(f"rows_to_columns{_suffix}(Tensor x, int[] widths, int width) -> Tensor")
LIBRARY.define("connect_ranks(int descriptor, int rank, int count, int floats, float seconds) -> ()")
LIBRARY.define("fail_rank(int rank) -> ()")


def register(
    name: str,
    reference: Callable[..., Any],
    shape: Callable[..., Any] | None = None,
    triton: Callable[..., Any] | None = None,
) -> None:
    """Register an operator's torch reference, its shape function, and what runs its Triton kernels, if it has them."""
    LIBRARY.impl(name, reference, "CompositeExplicitAutograd")
    if shape is not None:
        register_fake(f"ringkv::{name}", shape, lib=LIBRARY)
    if triton is not None and find_spec("triton"):
        LIBRARY.impl(name, triton, "CUDA")


def like_first(x: torch.Tensor, *_: object) -> torch.Tensor:
    """Allocate what has the shape and dtype of the first argument. Shape function of operators with such a result."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def grouped(function: Callable[..., T]) -> Callable[..., T]:
    """Return a function of an operator's flat arguments, which calls `function` with groups of them.

    A parameter that is a NamedTuple takes an argument for each of its fields, of which some may be NamedTuples, too.
    """
    takers = _takers(function)

    def call(*arguments: Any) -> T:
        remaining = iter(arguments)
        return function(*(take(remaining) for take in takers))

    return call


def _takers(owner: Callable[..., Any]) -> list[Callable[[Iterator[Any]], Any]]:
    """Return, for each parameter of a function or field of a NamedTuple, what takes its value from the arguments."""
    kinds = get_type_hints(owner)
    return [_taker(kind) for name, kind in kinds.items() if name != "return"]


def _taker(kind: Any) -> Callable[[Iterator[Any]], Any]:
    if not hasattr(kind, "_fields"):
        return next
    takers = _takers(kind)
    return lambda remaining: kind(*(take(remaining) for take in takers))


def native_operators() -> list[str]:
    """Return our operators that have a C++ kernel loaded: only those are registered for the dispatch key CPU."""
    names: list[str] = torch._C._dispatch_get_registrations_for_dispatch_key("CPU")
    return sorted(name for name in names if name.startswith("ringkv::"))


def is_native(name: str) -> bool:
    """Whether a C++ kernel of this operator is loaded."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"ringkv::{name}", "CPU")
