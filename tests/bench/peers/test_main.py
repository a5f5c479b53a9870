from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.peers import __main__ as module
from bench.peers.__main__ import arguments
from bench.peers.install import NotInstalled
from bench.peers.protocols import RUNS, Run


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The arguments of each `keep`; nothing is installed, loaded or written."""
    given: list[tuple[Any, ...]] = []
    monkeypatch.setenv("RINGKV_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "keep", lambda *words: given.append(words))
    monkeypatch.setattr(module, "locate", lambda model: tmp_path)
    monkeypatch.setattr(module, "_bench", lambda *words: None)
    monkeypatch.setattr(module, "load_config", lambda folder: SimpleNamespace(context=8192))
    monkeypatch.setattr(module, "python_of", lambda name, report: Path())
    monkeypatch.setattr(module, "weights_of", lambda *words: Path())
    return given


def measure(monkeypatch: pytest.MonkeyPatch, run: Any, *words: str) -> None:
    found = Run("equal-bytes", ("equal_bytes",), run)
    monkeypatch.setattr(module, "chosen", lambda args: found)
    monkeypatch.setattr(module, "arguments", lambda: arguments(["--equal-bytes", "1GB", *words]))
    module.main()


def test_a_peer_that_cannot_be_installed_is_a_row_of_its_own_measurement(
    kept: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, report: Any) -> Path:
        if name == "vllm":
            raise NotInstalled("no wheel")
        return Path()

    monkeypatch.setattr(module, "python_of", refuse)
    measure(monkeypatch, lambda *words: None, "--engines", "ringkv,vllm")
    ((name, workload, (row,), *_),) = kept
    assert (name, workload["model"], workload["equal_bytes"]) == ("peers", "smollm2", 10**9)
    assert (row["engine"], row["protocol"], row["prompt"], row["why"]) == ("vllm", "equal-bytes", 7680, "no wheel")


def test_an_interrupted_run_is_shown_and_not_appended(
    kept: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*words: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        measure(monkeypatch, interrupted)
    assert ended.value.code == 130
    assert "--resume continues" in capsys.readouterr().out
    assert not kept


def test_every_run_names_arguments_that_exist() -> None:
    known = vars(arguments([]))
    assert all(field in known for run in RUNS.values() for field in (*module.WORKLOAD, *run.fields))
