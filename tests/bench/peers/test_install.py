import sys
from pathlib import Path

import pytest

from bench.peers import install


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []

    def fake_install(name: str, folder: Path, report: install.Report, requirements: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        made.append(name)

    monkeypatch.setenv("RINGKV_CACHE", str(tmp_path))
    monkeypatch.setattr(install, "_install", fake_install)
    return made


def test_an_environment_is_made_once_for_its_requirements(calls: list[str], tmp_path: Path) -> None:
    first = install.python_of("vllm")
    assert install.python_of("vllm") == first
    assert first.is_relative_to(tmp_path / "peers" / "vllm")
    assert calls == ["vllm"]


def test_an_environment_of_other_requirements_is_made_anew(calls: list[str], tmp_path: Path) -> None:
    install.python_of("vllm")
    stamp = tmp_path / "peers" / "vllm" / ".installed"
    stamp.write_text(stamp.read_text().replace("==", "==0."))
    install.python_of("vllm")
    assert calls == ["vllm", "vllm"]


def test_an_interrupted_installation_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bool] = []
    monkeypatch.setattr(install.venv, "create", lambda folder, with_pip, clear: made.append(clear))
    monkeypatch.setattr(install, "_pip", lambda *words: None)
    folder = tmp_path / "vllm"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()  # and no pip yet
    install._install("vllm", folder, print, install.REQUIREMENTS)
    (folder / install.STAMP).touch()
    install._install("vllm", folder, print, install.REQUIREMENTS)
    assert made == [True]


def test_engines_without_requirements_run_in_our_own_environment() -> None:
    assert install.python_of("ringkv") == Path(sys.executable)


def test_every_engine_has_an_environment_and_a_worker() -> None:
    from bench.peers.engines import ENGINES

    workers = Path(install.__file__).parent / "workers"
    for engine in ENGINES.values():
        assert engine.environment == "ringkv" or (install.REQUIREMENTS / f"{engine.environment}.txt").is_file()
        assert (workers / f"{engine.worker}.py").is_file()
