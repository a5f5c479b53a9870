"""Fixtures and settings for every test."""

import os
import random
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# Before anything loads torch: the same thread count everywhere, or sums round differently from machine to machine.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # a thread that waits leaves its core to the other tests
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")  # a quarter of the time to compile a graph
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# A shell starts what it runs in the background deaf to Ctrl-C, and nohup deaf to the end of the terminal.
# Programs that the tests start would be so too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A busy machine is not a failure, and every run has the same examples.
settings.register_profile("ringkv", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("ringkv")

ROOT = Path(__file__).resolve().parent.parent


def pytest_sessionstart(session: pytest.Session) -> None:
    """Build the kernels before several processes run tests, which would wait for them within a test's time limit."""
    if not session.config.getoption("numprocesses", None):
        return
    from ringkv.kernels import native
    from ringkv.machine.compiler import find_compiler
    from ringkv.machine.folders import cache_dir

    if compiler := find_compiler():
        native.load(compiler.path, cache_dir() / "kernels")


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    """A test draws the same numbers alone and among others. Libraries that no test has loaded stay unloaded."""
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture
def tmp_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, where `cache_dir()` points for one test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("RINGKV_CACHE", str(folder))
    return folder


@pytest.fixture
def tmp_cache_with_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same with the kernels of the usual cache, whose build takes minutes."""
    from ringkv.machine.folders import cache_dir

    kernels, folder = cache_dir() / "kernels", tmp_path / "cache"
    kernels.mkdir(parents=True, exist_ok=True)
    folder.mkdir()
    (folder / "kernels").symlink_to(kernels)
    monkeypatch.setenv("RINGKV_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def texts() -> Path:
    """The folder of real texts and traces: `$RINGKV_DATA`, else `shared/data` beside the repository."""
    folder = Path(os.environ.get("RINGKV_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}; RINGKV_DATA names another folder")
    return folder


@pytest.fixture(scope="session")
def wikitext(texts: Path) -> Path:
    """WikiText-2's test split, as one text file."""
    path = texts / "text" / "wikitext-2_test.txt"
    if not path.is_file():
        pytest.skip(f"no WikiText-2 at {path}")
    return path


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """SmolLM2-135M-Instruct in Hugging Face layout, fetched the first time that a test asks for it."""
    from ringkv.base.errors import PullFailed
    from ringkv.residency.locate import locate

    try:
        return locate("smollm2")
    except PullFailed as error:
        pytest.skip(f"SmolLM2 could not be fetched: {error}")
