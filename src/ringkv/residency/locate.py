"""Find the directory in Hugging Face layout of a model argument; download or convert it if necessary.

Models with a hub id are downloaded with the optional package `huggingface_hub`.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ringkv.base.errors import PullFailed, UnknownModel
from ringkv.base.progress import Progress, silent
from ringkv.models.config import load_config
from ringkv.plan.options import Options
from ringkv.plan.shapes import hub_id, plain_name
from ringkv.plan.speculation import Speculation, with_model
from ringkv.residency.catalogue import CatalogueModel, catalogue, nearest
from ringkv.residency.convert import convert, converted_path, file_key, is_converted
from ringkv.residency.pull import pull
from ringkv.weights.gguf.split import set_name

SMALL_FILES = ("*.json", "*.jinja", "merges.txt")


def locate(model: str, progress: Progress = silent) -> Path:
    """Return the directory of a catalogue name (pulled once), a directory, a `.gguf` (converted once) or a hub id.

    Raises UnknownModel, PullFailed, BadWeights, UnsupportedModel.
    """
    return located(model)(progress)


def located(model: str) -> Callable[[Progress], Path]:
    """Return what downloads or converts a model, and returns its directory. Raises UnknownModel before that."""
    if model in catalogue():
        return partial(_of_catalogue, catalogue()[model])
    path = Path(model).expanduser()
    if path.is_dir():
        _check(path)
        return lambda _: path
    if path.is_file() and path.suffix == ".gguf":
        return partial(convert, path, converted_path(set_name(path), file_key(path)))
    if path.is_file():
        raise UnknownModel(f"{path} is a file but not a .gguf; give a .gguf file or a directory in Hugging Face layout")
    if is_hub_id(model) and path.suffix != ".gguf":
        return partial(from_hub, model)
    raise UnknownModel(_unknown(model))


def located_drafts(options: Options) -> Callable[[Progress], Options]:
    """Return what downloads or converts the draft model, and returns the options with its directory."""
    if not (model := Speculation.of(options).model):
        return lambda _: options
    download = located(model)
    return lambda progress: with_model(options, download(progress))


def _of_catalogue(model: CatalogueModel, progress: Progress) -> Path:
    target = catalogue_directory(model)
    if not is_converted(target, progress):
        convert(pull(model.name, progress), target, progress, model.sampling)
    return target


def catalogue_directory(model: CatalogueModel) -> Path:
    """Return the directory that `locate` returns for a catalogue model."""
    return converted_path(model.name, model.sha256)


def _check(path: Path) -> None:
    if (path / "config.json").is_file():
        return
    inside = sorted(path.glob("*.gguf"))
    remedy = f"give the file {inside[0]}" if inside else "give a directory in Hugging Face layout"
    raise UnknownModel(f"{path} has no config.json; {remedy}")


def _unknown(model: str) -> str:
    what = "file" if model.endswith(".gguf") else "model"
    if plain_name(model) not in catalogue() and (published := hub_id(model)):
        return (
            f"no {what} {model!r} on this disk; give {published}, which is downloaded from the hub, "
            "a directory in Hugging Face layout, or a .gguf file"
        )
    near = nearest(model)
    guess = f"did you mean {near}? Otherwise give" if near else "give"
    return (
        f"no {what} {model!r}; {guess} a catalogue name ({', '.join(catalogue())}), "
        "a directory in Hugging Face layout, a .gguf file, or a hub id such as organisation/name"
    )


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
