"""The key-value part of a GGUF file, as Python values."""

from pathlib import Path
from typing import Any

from ringkv.base.errors import BadWeights


def read_metadata(path: Path) -> dict[str, Any]:
    """Return key -> value. Raises BadWeights for a file that is not a GGUF or is truncated."""
    from gguf import GGUFReader  # slow to import, and needed only for conversion

    try:
        fields = GGUFReader(path).fields
        return {key: field.contents() for key, field in fields.items()}
    except (ValueError, IndexError, KeyError) as error:
        raise BadWeights(f"{path} does not read as GGUF ({error}); download it again") from error
