from pathlib import Path

import psutil

from ringkv.plan.memory import available_bytes, limit_bytes


def limited(folder: Path, top: str, current: int, cached: int) -> Path:
    (folder / "memory.max").write_text(f"{top}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\nactive_file 7\n")
    return folder


def test_a_container_has_its_limit_less_its_use_available(tmp_path: Path) -> None:
    folder = limited(tmp_path, "1000", current=700, cached=300)
    assert limit_bytes(folder) == 1000
    assert available_bytes(folder) == 1000 - (700 - 300)


def test_a_container_without_a_limit_has_the_machines_memory_available(tmp_path: Path) -> None:
    folder = limited(tmp_path, "max", current=700, cached=0)
    assert limit_bytes(folder) is None
    assert 0 < available_bytes(folder) <= psutil.virtual_memory().total


def test_a_full_container_has_nothing_available(tmp_path: Path) -> None:
    assert available_bytes(limited(tmp_path, "1000", current=1200, cached=0)) == 0


def test_outside_a_container_the_machines_memory_is_available(tmp_path: Path) -> None:
    assert limit_bytes(tmp_path) is None
    assert available_bytes(tmp_path) > 0


def test_a_group_is_limited_by_its_parents(tmp_path: Path) -> None:
    listing = tmp_path / "listing"
    listing.write_text("0::/system.slice/ringkv.service\n")
    inner = tmp_path / "system.slice" / "ringkv.service"
    inner.mkdir(parents=True)
    limited(inner, "5000", current=100, cached=0)
    limited(inner.parent, "2000", current=1500, cached=100)
    limited(tmp_path, "max", current=9000, cached=0)
    assert limit_bytes(tmp_path, listing) == 2000
    assert available_bytes(tmp_path, listing) == 2000 - (1500 - 100)


def test_version_1_of_cgroups_has_other_files(tmp_path: Path) -> None:
    listing = tmp_path / "listing"
    listing.write_text("5:cpu:/a\n4:memory:/a\n0::/\n")
    folder = tmp_path / "memory" / "a"
    folder.mkdir(parents=True)
    (folder.parent / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (folder / "memory.limit_in_bytes").write_text("1000\n")
    (folder / "memory.usage_in_bytes").write_text("700\n")
    (folder / "memory.stat").write_text("inactive_file 9\ntotal_inactive_file 300\n")
    assert limit_bytes(tmp_path, listing) == 1000
    assert available_bytes(tmp_path, listing) == 1000 - (700 - 300)
