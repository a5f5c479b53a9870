"""Huge pages for weights and caches: a decode step walks through all of them, and 4 KiB pages cost it 5 to 20 percent.

torch asks the system for 2 MiB pages by itself when THP_MEM_ALLOC_ENABLE is set; a system that has none ignores it.
"""

import os


def use_huge_pages() -> None:
    """Set THP_MEM_ALLOC_ENABLE, unless the user did. Only has effect before torch allocates."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
