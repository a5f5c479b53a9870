import pytest

from bench import report


@pytest.mark.parametrize(
    ("flags", "folder"),
    [
        ("fpu avx2 avx512f avx512_bf16 amx_tile amx_bf16", "amx_bf16"),
        ("fpu avx2 avx512f avx512_bf16", "avx512_bf16"),
        ("fpu avx2", "plain"),
        (None, "plain"),
    ],
)
def test_figures_lie_by_what_multiplies(flags: str | None, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_said", lambda field: flags if field == "flags" else None)
    assert report.results() == report.RESULTS / folder
