"""A command's --model may be given as its argument, as other servers take it: `ringkv serve NAME`."""

from typing import Any

from typer.core import TyperCommand

OPTION = "model"


class ModelCommand(TyperCommand):
    """A command that has --model and no arguments of its own, so arguments are models."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a command line. Fails if models are given in both ways, or several to a command that takes one."""
        ctx.allow_extra_args = True
        models = super().parse_args(ctx, args)
        if models:
            ctx.params[OPTION] = self._named(ctx, models)
        ctx.args = []
        return []

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[MODEL]..." if self._takes_several() else "[MODEL]"]

    def _named(self, ctx: Any, models: list[str]) -> list[str] | str:
        if ctx.get_parameter_source(OPTION).name == "COMMANDLINE":
            ctx.fail(f"{' '.join(models)} is a second model beside --model; give all with --model")
        if self._takes_several():
            return models
        if len(models) > 1:
            ctx.fail(f"the command takes one model; leave out {' '.join(models[1:])}")
        return models[0]

    def _takes_several(self) -> bool:
        return any(one.name == OPTION and getattr(one, "multiple", False) for one in self.params)
