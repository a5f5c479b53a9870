import json
import re
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from ringkv.doctor import choices, report
from ringkv.doctor.choices import Device, TorchFacts, torch_facts
from ringkv.kernels import native
from ringkv.machine.compiler import Compiler

EAGER = "no C++ compiler was found"


def value(what: str, made: tuple[choices.Choice, ...]) -> choices.Choice:
    return next(choice for choice in made if choice.what == what)


def test_a_report_is_plain_enough_for_json(tmp_cache: Path) -> None:
    result = json.loads(json.dumps(asdict(report.report())))
    assert result["python"] == sys.version.split()[0]
    assert {choice["what"] for choice in result["choices"]} == {
        "device",
        "graphs",
        "kernels",
        "dtype",
        "activations",
        "threads",
    }
    assert result["devices"][0]["name"] == "cpu"


def test_torchs_version_is_the_installed_one() -> None:
    import torch

    packages = {package.name: package.version for package in report.report().packages}
    assert packages["torch"] == torch.__version__


def test_the_sizes_of_the_cache_folders_are_reported(tmp_cache: Path) -> None:
    (tmp_cache / "models" / "some").mkdir(parents=True)
    (tmp_cache / "models" / "some" / "weights").write_bytes(b"x" * 1000)
    (tmp_cache / "models" / "config").write_bytes(b"x" * 24)
    (tmp_cache / "lock").write_bytes(b"x" * 3)
    cache = report.report().cache
    assert (cache.path, cache.set_by) == (str(tmp_cache), "RINGKV_CACHE")
    assert {folder.name: folder.bytes for folder in cache.folders} == {"models": 1024, "lock": 3}
    assert cache.disk_free > 0


def test_a_cache_folder_that_does_not_exist_is_empty(tmp_cache: Path) -> None:
    assert report.report().cache.folders == ()
    assert not tmp_cache.exists()


def test_without_a_compiler_the_remedy_is_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "missing_for_graphs", lambda: EAGER)
    result = report.report()
    assert [(choice.what, choice.value, choice.remedy) for choice in result.problems] == [("graphs", "off", EAGER)]


def test_without_a_compiler_torchs_operators_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {}
    for compiler in (None, Compiler("/usr/bin/g++", python_headers=True)):
        monkeypatch.setattr(choices, "find_compiler", lambda found=compiler: found)
        monkeypatch.setattr(choices, "missing_for_kernels", lambda found=compiler: None if found else EAGER)
        made[compiler] = value("kernels", choices.choices(TorchFacts(threads=2, devices=()), [], 2)).value
    assert list(made.values()) == ["torch", "C++"]


def test_activations_are_int8_if_the_processor_has_dot_products_of_bytes() -> None:
    facts = TorchFacts(threads=2, devices=())
    made = {have: value("activations", choices.choices(facts, [have], 2)).value for have in ("avx512_vnni", "avx2")}
    assert made == {"avx512_vnni": "int8", "avx2": "16-bit"}


def test_on_another_platform_the_report_says_why_torchs_operators_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    made = choices.choices(TorchFacts(threads=2, devices=()), ["asimd"], 2)
    assert [value(what, made).value for what in ("kernels", "graphs")] == ["torch", "off"]
    assert all("Linux on aarch64" in one.why for one in made[1:3])
    assert [one.what for one in made if one.remedy] == []


def test_kernels_that_could_not_be_built_are_reported_with_the_compilers_error(
    tmp_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\n[ $1 = --version ] || { echo no such option >&2; exit 1; }\n")
    broken.chmod(0o755)
    monkeypatch.setattr(choices, "find_compiler", lambda: Compiler(str(broken), python_headers=True))
    with pytest.raises(RuntimeError):
        native.load(str(broken), tmp_cache / "kernels")
    found = value("kernels", report.report().choices)
    assert found.value == "torch"
    assert re.search(r"(?s)failed: no such option.*to try again", str(found.remedy))


def test_without_torch_there_is_no_engine_and_one_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert torch_facts() is None
    result = report.report()
    assert [choice.what for choice in result.problems] == ["engine"]
    assert result.cpu.torch_threads is None


def test_native_bfloat16_is_named_when_the_cpu_has_it() -> None:
    facts = TorchFacts(threads=2, devices=())
    assert "amx_bf16" in value("dtype", choices.choices(facts, ["avx2", "amx_bf16"], 2)).why
    assert "widened during multiplication" in value("dtype", choices.choices(facts, ["avx2"], 2)).why
    assert "float32" in value("dtype", choices.choices(facts, ["asimd"], 2)).why


def test_an_accelerator_is_named_with_the_flag_that_uses_it() -> None:
    facts = TorchFacts(threads=2, devices=(Device("cuda:0", "Some GPU", 80, 70),))
    assert "--device cuda:0" in value("device", choices.choices(facts, [], 2)).why
