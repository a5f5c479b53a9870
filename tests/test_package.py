"""The package that users install: what is in it, and its page on a package index. Built here without a network."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def build(source: Path, target: str, folder: Path) -> Path:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=60)
    (made,) = folder.glob("ringkv-*.whl" if target == "wheel" else "ringkv-*.tar.gz")
    return made


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    folder = tmp_path_factory.mktemp("package")
    with tarfile.open(build(ROOT, "sdist", folder)) as sdist:
        sdist.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # 3.11.4 has it
    return next(path for path in folder.glob("ringkv-*") if path.is_dir())


@pytest.fixture(scope="module")
def wheel(unpacked: Path) -> Path:
    """The wheel, built from the source distribution as pip builds it."""
    return build(unpacked, "wheel", unpacked.parent)


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as opened:
        name = next(name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_string(opened.read(name).decode())


def test_the_wheel_has_every_file_of_the_source_tree(wheel: Path) -> None:
    source = ROOT / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as opened:
        packaged = {name for name in opened.namelist() if ".dist-info/" not in name}
    assert packaged == expected
    assert {Path(name).suffix for name in packaged} >= {".py", ".cpp", ".h", ".toml", ".html", ".typed"}


def test_the_source_distribution_has_the_web_pages_sources_and_nothing_that_is_made_of_them(unpacked: Path) -> None:
    ignored = (ROOT / "web" / ".gitignore").read_text(encoding="utf-8").split()
    made = [ROOT / "web" / name for name in ignored]
    sources = {path for path in (ROOT / "web").rglob("*") if path.is_file() and not {path, *path.parents} & {*made}}
    assert ROOT / "web" / "package-lock.json" in sources
    packaged = {ROOT / path.relative_to(unpacked) for path in (unpacked / "web").rglob("*") if path.is_file()}
    assert packaged == sources


def test_the_wheel_opens_its_data_files_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    code = """
from ringkv.kernels.native import SOURCES
from ringkv.plan.shapes import names
from ringkv.residency.catalogue import catalogue
assert names() and list(SOURCES.glob("*.cpp")) and catalogue()
print(SOURCES)
"""
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path / "installed")
    sources = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "installed")},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.strip()
    assert Path(sources) == tmp_path / "installed" / "ringkv" / "kernels" / "cpu"


def test_links_and_pictures_on_the_package_page_are_addresses(metadata: Message) -> None:
    readme, page = (ROOT / "README.md").read_text(encoding="utf-8"), str(metadata.get_payload())
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", page)
    assert len(links) == len(re.findall(r"\]\(", readme))
    repository = PROJECT["urls"]["Repository"]
    paths = []
    for picture, link in links:
        assert link.startswith("https://")
        if link.startswith(repository):
            kind, _, path = link.removeprefix(f"{repository}/").partition("/HEAD/")
            assert kind == ("raw" if picture else "blob")
            paths.append(path.partition("#")[0])
    assert "docs/memory.svg" in paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_page_says_no_other_words_than_the_readme(metadata: Message) -> None:
    def prose(text: str) -> list[str]:
        return re.sub(r"\]\([^)]*\)", "]", text).split()

    assert prose(str(metadata.get_payload())) == prose((ROOT / "README.md").read_text(encoding="utf-8"))


def test_the_metadata_names_versions_license_and_repository(metadata: Message) -> None:
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"].startswith("text/markdown")
    assert metadata["Project-URL"] == f"Repository, {PROJECT['urls']['Repository']}"
    known = pytest.importorskip("trove_classifiers").classifiers
    assert [one for one in metadata.get_all("Classifier", []) if one not in known] == []


def test_the_citation_is_of_this_version_and_repository(metadata: Message) -> None:
    citation = dict(re.findall(r"^([\w-]+): (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE))
    assert (citation["version"], citation["license"]) == (metadata["Version"], metadata["License-Expression"])
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]


def test_a_wheel_with_compiled_kernels_names_the_newest_glibc_that_they_need(
    unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = tmp_path / "binaries" / "torch-2.13"
    kernels.mkdir(parents=True)
    (kernels / "avx2.so").write_bytes(b"\x7fELF\0GLIBC_2.2.5\0GLIBC_2.29\0GLIBC_2.4\0")
    (kernels / "amx.so").write_bytes(b"\x7fELF\0GLIBC_2.14\0GLIBC_2.31\0")
    monkeypatch.setenv("RINGKV_BINARIES", str(kernels.parent))
    made = build(unpacked, "wheel", tmp_path / "dist")
    assert made.name.endswith("-py3-none-manylinux_2_31_x86_64.whl")
    with zipfile.ZipFile(made) as opened:
        assert opened.read("ringkv/kernels/binaries/torch-2.13/avx2.so").startswith(b"\x7fELF")
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/WHEEL"))
        assert b"Root-Is-Purelib: false" in opened.read(name)
