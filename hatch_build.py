"""The package page: README.md with addresses instead of paths, because a package index has only this one file."""

import re
from pathlib import Path
from typing import Any

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
