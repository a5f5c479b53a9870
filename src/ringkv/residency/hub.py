"""Download a model by its Hugging Face hub id, with the optional package `huggingface_hub`."""

import re
from pathlib import Path

from ringkv.base.errors import PullFailed, UnknownModel
from ringkv.base.progress import Progress, silent
from ringkv.models.config import load_config

SMALL_FILES = ("*.json", "*.jinja", "merges.txt")


def is_hub_id(model: str) -> bool:
    """Return whether `model` is `organisation/name`; paths that begin with `.`, `/` or `~` are not."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", model) is not None


def from_hub(model: str, progress: Progress = silent) -> Path:
    """Return the model's directory in the hub's cache, downloaded if missing.

    The configuration is downloaded first, so that an unsupported model is refused early.

    Raises PullFailed, UnknownModel, UnsupportedModel.
    """
    progress(0, 0, f"looking up {model} on the hub")
    directory = _snapshot(model, SMALL_FILES)
    load_config(directory)
    progress(0, 0, f"downloading {model} from the hub")
    directory = _snapshot(model, (*SMALL_FILES, "*.safetensors"))
    if not any(directory.glob("*.safetensors")):
        raise UnknownModel(f"{model} has no safetensors on the hub; ringkv reads safetensors and GGUF")
    return directory


def _snapshot(model: str, patterns: tuple[str, ...]) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise PullFailed(
            f"{model} looks like a hub id; `pip install huggingface_hub` to download from the hub"
        ) from None
    try:
        return Path(snapshot_download(model, allow_patterns=list(patterns)))
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].partition(". ")[0]
        raise PullFailed(
            f"{model} could not be downloaded from the hub ({reason}); check the id and the network, "
            f"run `hf download {model}` where there is one, or give a directory or a .gguf file"
        ) from None
