"""ringkv pull: download a model before it is needed."""

from typing import Annotated

import typer

from ringkv.base.errors import InvalidRequest
from ringkv.cli.options import AsJson
from ringkv.cli.output import print_json
from ringkv.llm.show_progress import show_progress
from ringkv.plan.units import show_bytes


def pull(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A name from `ringkv models`, or a hub id.", show_default=False)
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Download a model, verify it and convert it.

    An interrupted download resumes when the command is run again. Existing files are not downloaded again.

        ringkv pull smollm2
        ringkv pull qwen2.5-coder-1.5b
    """
    from ringkv.residency.catalogue import catalogue
    from ringkv.residency.locate import locate

    if name is None:
        raise InvalidRequest(
            f"missing argument 'NAME'; give one of {', '.join(catalogue())}, or a hub id such as organisation/name"
        )
    with show_progress() as progress:
        directory = locate(name, progress)
    size = sum(file.stat().st_size for file in directory.iterdir() if file.is_file())
    if as_json:
        print_json({"model": name, "directory": directory, "bytes": size})
    else:
        typer.echo(f"{name} is ready: {directory} ({show_bytes(size)})")
