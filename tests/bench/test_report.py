import pytest

from bench import report
from ringkv.base import processor


@pytest.mark.parametrize(
    ("said", "folder"),
    [
        ({"vendor_id": "GenuineIntel", "flags": "fpu avx512f avx512_bf16 amx_tile amx_bf16"}, "intel-amx_bf16"),
        ({"vendor_id": "GenuineIntel", "flags": "fpu avx512f avx512_bf16"}, "intel-avx512_bf16"),
        ({"vendor_id": "AuthenticAMD", "flags": "fpu avx512f avx512_bf16"}, "amd-avx512_bf16"),
        ({"vendor_id": "AuthenticAMD", "flags": "fpu avx2"}, "amd-plain"),
        ({}, "other-plain"),
    ],
)
def test_figures_lie_by_maker_and_by_what_multiplies(
    said: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "described", lambda: said)
    assert report.results() == report.RESULTS / folder
