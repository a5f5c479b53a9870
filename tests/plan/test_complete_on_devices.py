"""Formats, graphs and threads that a device has."""

from importlib.util import find_spec

import pytest

from ringkv.base.cache_spec import PlaneFormat, SlotFormat
from ringkv.base.errors import InvalidRequest
from ringkv.kernels.encoding import LATENT_ENCODINGS
from ringkv.models.config import ModelConfig
from ringkv.plan import complete
from tests.plan.models import config
from tests.plan.resolved import DEEPSEEK, resolved
from tests.refusals import refusal


def test_activations_are_int8_if_weights_are_quantised_and_the_processor_multiplies_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found(instruction: str, **options: str) -> str:
        monkeypatch.setattr(complete, "instructions", lambda: frozenset((instruction,)))
        return resolved(**options).activations

    assert found("avx512_vnni", weights="int8") == found("avx_vnni", weights="int4", activations="auto") == "int8"
    assert found("avx2", weights="int8", activations="int8") == "int8"
    assert found("avx2", weights="int8") == found("avx512_vnni") == "16-bit"
    assert found("avx2", weights="int4", activations="int4") == "int4"
    assert found("avx512_vnni", weights="int4", activations="16-bit") == "16-bit"
    with refusal("activations", "weights int4"):
        resolved(weights="int8", activations="int4")
    with refusal("activations", "int8 or int4"):
        resolved(activations="int8")


@pytest.mark.parametrize("elsewhere", [{"dtype": "float32"}, {"device": "cuda"}])
def test_quantised_weights_are_refused_if_no_kernel_multiplies_them(elsewhere: dict[str, str]) -> None:
    with refusal("weights", "int8 .* bfloat16"):
        resolved(weights="int8", **elsewhere)


def test_a_cpu_with_a_number_is_refused() -> None:
    with refusal("device", "'cpu:0'"):
        resolved(device="cpu:0")


def test_graphs_are_compiled_if_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complete, "missing_for_graphs", lambda: None)
    assert [resolved(graphs=one).graphs for one in (None, "auto", "compiled", "off")] == ["compiled"] * 3 + ["off"]
    assert resolved(graphs="background").graphs == "background"
    assert resolved(graphs="background", device="cuda:0").graphs == "compiled"


def test_without_a_compiler_graphs_are_off_and_compiled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complete, "missing_for_graphs", lambda: "no C++ compiler was found")
    assert resolved().graphs == resolved(graphs="background").graphs == "off"
    assert resolved(device="cuda:0").graphs == "compiled"  # captured by the driver, without a compiler
    for device in ("cpu", "cuda"):
        with refusal("graphs", r"C\+\+ compiler"):
            resolved(graphs="compiled", device=device)


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed (Linux only)")
def test_formats_with_kernels_are_accepted_on_a_gpu() -> None:
    from ringkv.kernels.gpu.forms import FORMS

    for encoding in ("plain", *FORMS, "zipcache"):
        assert resolved(kv_format=encoding, device="cuda:0").slot_format.encoding == encoding


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed (Linux only)")
def test_formats_of_latents_are_accepted_on_a_gpu_if_they_have_kernels() -> None:
    from ringkv.kernels.gpu.forms import FORMS

    assert set(LATENT_ENCODINGS) == {"plain", *FORMS}
    for encoding in LATENT_ENCODINGS:
        assert resolved(DEEPSEEK, kv_format=encoding, device="cuda:0").slot_format.encoding == encoding


@pytest.mark.parametrize(
    ("model", "kv_format", "said"),
    [
        (
            config(vocab=9, hidden=576, intermediate=96, layers=30, heads=9, kv_heads=3, head_dim=36, context=8192),
            "zipcache",
            "packs 8 elements together on cuda:0, which do not divide a head of 36",
        ),
        (DEEPSEEK, "zipcache", "zipcache is not implemented with latent caches"),
    ],
)
def test_formats_without_kernels_are_refused_on_a_gpu(model: ModelConfig, kv_format: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as raised:
        resolved(model, kv_format=kv_format, device="cuda:0")
    assert raised.value.param == "kv_format"


@pytest.mark.parametrize(
    ("kv_format", "skip"),
    [("plain", 0), ("int8", 0), ("int4", 2), ("zipcache", 2)],
)
def test_layers_at_the_ends_stay_plain_with_4_bits_unless_a_number_is_given(kv_format: PlaneFormat, skip: int) -> None:
    assert resolved(kv_format=kv_format).slot_format == SlotFormat(kv_format, skip=skip)
    if kv_format != "plain":
        assert resolved(kv_format=kv_format, kv_format_skip=3).slot_format == SlotFormat(kv_format, skip=3)
    with refusal("kv_format_skip", "-1"):
        resolved(kv_format=kv_format, kv_format_skip=-1)
