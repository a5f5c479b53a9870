"""Find the directory in Hugging Face layout of a model argument; download or convert it if necessary."""

from pathlib import Path

from ringkv.base.errors import UnknownModel
from ringkv.base.progress import Progress, silent
from ringkv.plan.shapes import hub_id, plain_name
from ringkv.residency.catalogue import CatalogueModel, catalogue, nearest
from ringkv.residency.convert import convert, converted_path, file_key, is_converted
from ringkv.residency.hub import from_hub, is_hub_id
from ringkv.residency.pull import pull
from ringkv.weights.gguf.split import set_name


def locate(model: str, progress: Progress = silent) -> Path:
    """Return the directory of a catalogue name (pulled once), a directory, a `.gguf` (converted once) or a hub id.

    Raises UnknownModel, PullFailed, BadWeights, UnsupportedModel.
    """
    if model in catalogue():
        known = catalogue()[model]
        target = catalogue_directory(known)
        if not is_converted(target, progress):
            convert(pull(model, progress), target, progress, known.sampling)
        return target
    path = Path(model).expanduser()
    if path.is_dir():
        return _checked(path)
    if path.is_file() and path.suffix == ".gguf":
        return convert(path, converted_path(set_name(path), file_key(path)), progress)
    if path.is_file():
        raise UnknownModel(f"{path} is a file but not a .gguf; give a .gguf file or a directory in Hugging Face layout")
    if is_hub_id(model) and path.suffix != ".gguf":
        return from_hub(model, progress)
    raise UnknownModel(_unknown(model))


def catalogue_directory(model: CatalogueModel) -> Path:
    """Return the directory that `locate` returns for a catalogue model."""
    return converted_path(model.name, model.sha256)


def _checked(path: Path) -> Path:
    if (path / "config.json").is_file():
        return path
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
