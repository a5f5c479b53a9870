from pathlib import Path
from types import SimpleNamespace

import pytest

from ringkv.machine import processor


def test_the_first_processors_fields_are_read(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(
        "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nmodel name\t: Other\n"
    )
    assert processor.cpuinfo(path) == {"processor": "0", "model name": "Some CPU", "flags": "fpu avx2"}
    assert processor.cpuinfo(tmp_path / "nowhere") == {}


@pytest.mark.parametrize("field", ["flags", "Features"])  # on x86 and on ARM
def test_instructions_are_the_names_in_cpuinfo(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "cpuinfo", lambda: {field: "fpu bf16"})
    assert processor.instructions() == {"fpu", "bf16"}


def test_processors_with_the_same_name_have_different_identities_if_their_instructions_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_amx, without = "fpu avx512f amx_bf16", "fpu avx512f"
    seen = set()
    for flags in (with_amx, without):
        monkeypatch.setattr(processor, "cpuinfo", lambda flags=flags: {"model name": "Xeon", "flags": flags})
        seen.add(processor.identity())
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("flags", "returned", "refused"), [("amx_tile", 0, False), ("amx_tile", -1, True), ("", -1, False)]
)
def test_amx_is_refused_if_the_processor_has_it_and_the_system_denies_it(
    flags: str, returned: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, ...]] = []

    def syscall(*numbers: int) -> int:
        calls.append(numbers)
        return returned

    monkeypatch.setattr(processor, "cpuinfo", lambda: {"flags": flags})
    monkeypatch.setattr(processor.ctypes, "CDLL", lambda _: SimpleNamespace(syscall=syscall))
    assert processor.refuses_amx.__wrapped__() is refused
    assert calls == ([(158, 0x1023, 18)] if flags else [])
