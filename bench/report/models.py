"""models: the table of families, from the registry, their own descriptions, and the plan's catalogue."""

import inspect
import sys
from collections.abc import Sequence

from ringkv.models.families.registry import FAMILIES
from ringkv.plan.shapes import configurations


def models() -> str:
    """Return a row for each family: its architectures, and the sizes that `ringkv plan` knows."""
    modules: dict[str, list[str]] = {}
    for name, family in FAMILIES.items():
        modules.setdefault(family.__module__, []).append(name)
    rows = [_row(module, names) for module, names in modules.items()]
    return "\n".join(["| family | architectures | `ringkv plan` |", "|---|---|---|", *rows])


def _row(module: str, names: Sequence[str]) -> str:
    about = (inspect.getdoc(sys.modules[module]) or "").partition("\n\n")[0].replace("\n", " ").removesuffix(".")
    sizes = (size for size, raw in configurations().items() if raw["architectures"][0] in names)
    return f"| {about} | {', '.join(names)} | {', '.join(f'`{size}`' for size in sizes)} |"
