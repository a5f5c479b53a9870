"""files: names of the weight files in a model directory, and their stamps."""

from pathlib import Path

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Both are in safetensors format; with another suffix, because other programs load every *.safetensors.
GROUPS = "int4.groups"
BYTE_GROUPS = "int8.groups"


def stamps(model_dir: Path) -> list[tuple[str, int, int]]:
    """Return what tells a model's files from those of others, unread: names, bytes and times of change in ns."""
    files = [model_dir / "config.json", *sorted(model_dir.glob("*.safetensors"))]
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
