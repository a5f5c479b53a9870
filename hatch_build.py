"""What a build adds to the sources: the package page, and the compiled kernels if `scripts/wheel.py` has made them.

The page is README.md with addresses instead of paths, because a package index has only this one file.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<path>(?!https?:|#)[^)\s]+)\)")


class PackagePage(MetadataHookInterface):
    """Sets `readme` when a package is built."""

    def update(self, metadata: dict[str, Any]) -> None:
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = with_addresses(readme, metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_addresses(readme: str, repository: str) -> str:
    """Replace paths in the repository by addresses in it; pictures need the file itself and not a page about it."""

    def address(link: re.Match[str]) -> str:
        kind = "raw" if link["picture"] else "blob"
        return f"{link['picture']}[{link['text']}]({repository}/{kind}/HEAD/{link['path']})"

    return LINK.sub(address, readme)


class CompiledKernels(BuildHookInterface):
    """Adds the kernels in the folder `$RINGKV_BINARIES` to a wheel, and names its platform. Without it does nothing."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if folder := os.environ.get("RINGKV_BINARIES"):
            build_data["force_include"][folder] = "ringkv/kernels/binaries"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform(Path(folder))}"


def platform(folder: Path) -> str:
    """Return the manylinux platform (PEP 600) of libraries: the newest version of glibc's symbols that they need."""
    needs = (re.findall(rb"GLIBC_2\.(\d+)\0", path.read_bytes()) for path in folder.rglob("*.so"))
    return f"manylinux_2_{max(int(minor) for minors in needs for minor in minors)}_x86_64"
