"""Options that several commands share: which model, which cache, which machine, and how to sample."""

from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from ringkv.base.sampling import SamplingParams
from ringkv.cli.settings import CACHE
from ringkv.plan.kv_settings import Amount, Conversation, Format, Ratio, Selection
from ringkv.plan.options import AUTO, Options

MODEL, MACHINE, SAMPLING = "Model", "Machine", "Sampling"  # panels of --help
SWITCH = ""  # the metavar of a flag that takes no value

ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        help="A name of `ringkv models`, a directory in Hugging Face layout, a .gguf file, or a hub id.",
        rich_help_panel=MODEL,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", metavar=SWITCH, help="Print one JSON value on stdout, for programs.")]


def _cache(flag: str, metavar: str, help: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=help, rich_help_panel=CACHE, show_default=False)


def _machine(flag: str, metavar: str, help: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=help, rich_help_panel=MACHINE, show_default=False)


def _sampling(flag: str, metavar: str, help: str, show: bool = True) -> Any:
    return typer.Option(flag, metavar=metavar, help=help, rich_help_panel=SAMPLING, show_default=show)


@dataclass(frozen=True)
class _Model:
    model: ModelName = "smollm2"


@dataclass(frozen=True)
class _Lengths:
    prompt_tokens: Annotated[
        int | None,
        _machine(
            "--max-prompt",
            "TOKENS",
            "Longest prompt; by default the model's context, at most 32768, or what fits in memory.",
        ),
    ] = None
    output_tokens: Annotated[
        int | None,
        _machine("--max-output", "TOKENS", "Longest output under policy full; 1024 by default."),
    ] = None


@dataclass(frozen=True)
class _Machine:
    slots: Annotated[
        int | None,
        _machine("--slots", "N", "Requests that decode together; 1 by default, 8 for serve and bench."),
    ] = None
    dtype: Annotated[
        str | None,
        _machine("--dtype", "TYPE", "Of weights and cache: bfloat16 (the default), float16 or float32."),
    ] = None
    weights: Annotated[
        str | None,
        _machine(
            "--weights", "BITS", "Of the weight matrices: bf16 (the default), int8 or int4; fewer bits decode faster."
        ),
    ] = None
    device: Annotated[
        str | None,
        _machine("--device", "NAME", "cpu (the default) or cuda:0; `ringkv doctor` lists what there is."),
    ] = None
    graphs: Annotated[
        str | None,
        _machine("--graphs", "WHEN", "Static graphs: auto (if they can be built, the default), compiled or off."),
    ] = None
    threads: Annotated[
        int | None,
        _machine("--threads", "N", "Threads to compute with; one for each usable CPU by default."),
    ] = None


@dataclass(frozen=True)
class _Speculation:
    speculate: Annotated[
        int | None,
        _machine(
            "--speculate",
            "N",
            "Guess N tokens ahead from what the text repeats: 3 suits code editing and extraction; 0 by default. "
            "The tokens stay the same.",
        ),
    ] = None


@dataclass(frozen=True)
class _Remembered:
    prefix_store: Annotated[
        str,
        _cache(
            "--prefix-store",
            "BYTES",
            "Host memory to cache the prefixes of prompts in; 0 caches none; by default 1GB, if it fits.",
        ),
    ] = AUTO


# Fields stand in the order of the bases from last to first: that of --help.
@dataclass(frozen=True)
class StudyOptions(_Machine, Selection, Format, _Model):
    """What a command takes that chooses policies, budgets and the longest prompt itself."""

    def options(self, slots: int = 1) -> Options:
        """None leaves a choice open; `slots` is what a command takes that was not told."""
        chosen = {one.name: getattr(self, one.name) for one in fields(Options) if hasattr(self, one.name)}
        chosen["slots"] = slots if self.slots is None else self.slots
        return Options(**chosen)


@dataclass(frozen=True)
class EngineOptions(StudyOptions, _Speculation, _Lengths, Ratio, Amount, _Model):
    """What an engine is made from. All but the first are fields of `plan.options.Options`."""


@dataclass(frozen=True)
class TalkOptions(EngineOptions, _Remembered, Conversation, Selection, _Model):
    """The same where conversations are held."""


@dataclass(frozen=True)
class Sampling:
    """The fields of `SamplingParams` that make sense on a command line."""

    max_tokens: Annotated[int, _sampling("--max-tokens", "N", "Longest answer.")] = 256
    temperature: Annotated[
        float, _sampling("--temperature", "T", "0 is greedy: the most probable token each time.")
    ] = 0.0
    top_p: Annotated[
        float, _sampling("--top-p", "P", "Sample from the most probable tokens that add up to this probability.")
    ] = 1.0
    top_k: Annotated[int, _sampling("--top-k", "K", "Sample from this many of the most probable tokens; 0 is all.")] = 0
    min_p: Annotated[
        float, _sampling("--min-p", "P", "Sample from tokens with at least this share of the highest probability.")
    ] = 0.0
    seed: Annotated[
        int | None, _sampling("--seed", "N", "The same seed samples the same tokens; random by default.", False)
    ] = None
    stop: Annotated[
        list[str] | None, _sampling("--stop", "TEXT", "Stop before this text; may be given several times.", False)
    ] = None
    min_tokens: Annotated[int, _sampling("--min-tokens", "N", "Generate at least this many tokens.")] = 0
    ignore_eos: Annotated[
        bool, _sampling("--ignore-eos", SWITCH, "Generate up to --max-tokens, past an end of sequence.", False)
    ] = False
    repetition_penalty: Annotated[
        float, _sampling("--repetition-penalty", "F", "Above 1 penalises tokens of the prompt and the answer.")
    ] = 1.0
    presence_penalty: Annotated[
        float, _sampling("--presence-penalty", "F", "Above 0 penalises tokens that the answer has.")
    ] = 0.0
    frequency_penalty: Annotated[
        float, _sampling("--frequency-penalty", "F", "Above 0 penalises them by how often it has them.")
    ] = 0.0

    def params(self) -> SamplingParams:
        """Raises `InvalidRequest` naming the option at fault."""
        return SamplingParams(**{**vars(self), "stop": tuple(self.stop or ())})
