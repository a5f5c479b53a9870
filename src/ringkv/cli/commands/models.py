"""ringkv models: the models with a name, and which are on this machine."""

from ringkv.cli.options import AsJson
from ringkv.cli.output import console, print_json, print_table
from ringkv.plan.units import show_bytes


def models(*, as_json: AsJson = False) -> None:
    """List the models that ringkv can download by name, and which are on this machine.

    --model also takes a directory in Hugging Face layout, a .gguf file or a hub id.

        ringkv models
        ringkv models --json
    """
    from ringkv.residency.inventory import ModelInfo, list_models

    def row(model: ModelInfo) -> tuple[str, ...]:
        local, size = ("yes", show_bytes(model.disk_bytes)) if model.pulled else ("no", "")
        return (model.name, local, size, f"{model.context:,}", show_bytes(model.download_bytes), model.licence)

    listed = list_models()
    if as_json:
        print_json(listed)
    else:
        print_table(("name", "local", "on disk ", "context ", "download ", "licence"), [row(model) for model in listed])
        titles = "\n".join(f"{model.name}: {model.title}" for model in listed)
        console().print(f"\n{titles}", soft_wrap=True)
