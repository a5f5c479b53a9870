"""List the catalogue's models and their files on this disk."""

from dataclasses import dataclass
from pathlib import Path

from ringkv.residency.catalogue import CatalogueModel, catalogue
from ringkv.residency.locate import catalogue_directory
from ringkv.residency.pull import pulled_path


@dataclass(frozen=True)
class ModelInfo:
    """One catalogue model as `ringkv models` shows it."""

    name: str
    title: str
    licence: str
    context: int  # tokens
    download_bytes: int
    disk_bytes: int  # used now by the GGUF and its converted copy
    pulled: bool
    directory: Path | None  # in Hugging Face layout; None until it is converted


def list_models() -> list[ModelInfo]:
    return [_info(model) for model in catalogue().values()]


def _info(model: CatalogueModel) -> ModelInfo:
    gguf, directory = pulled_path(model), catalogue_directory(model)
    files = [gguf, *directory.glob("*")]
    return ModelInfo(
        name=model.name,
        title=model.title,
        licence=model.licence,
        context=model.context,
        download_bytes=model.download_bytes,
        disk_bytes=sum(file.stat().st_size for file in files if file.is_file()),
        pulled=gguf.is_file() or directory.is_dir(),
        directory=directory if directory.is_dir() else None,
    )
