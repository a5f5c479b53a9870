import pytest

from bench.peers.__main__ import arguments


def test_defaults_depend_on_the_measurement() -> None:
    assert arguments([]).prompts == (512, 4096, 8192)
    assert arguments(["--resident"]).requests == (8,)
    assert arguments(["--equal-bytes", "1.5GB"]).equal_bytes == 1_500_000_000


def test_one_start_is_not_enough_as_it_may_compile(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(["--resident", "--rounds", "1"])
    assert "--rounds 2 or more" in capsys.readouterr().err


def test_an_unknown_engine_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(["--engines", "ringkv,ollama"])
    assert "unknown engine ollama" in capsys.readouterr().err
