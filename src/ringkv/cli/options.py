"""Options that several commands share: model, cache, machine and sampling."""

from dataclasses import dataclass, field, fields
from functools import partial
from typing import Annotated, Any

import typer

from ringkv.base.sampling import SamplingParams
from ringkv.cli.counts import token_count
from ringkv.cli.option import option
from ringkv.cli.settings import CACHE
from ringkv.plan.kv_settings import (
    BudgetSettings,
    CompressionSettings,
    FormatSettings,
    PageSettings,
    ProfileSettings,
    SelectionSettings,
    TurnSettings,
)
from ringkv.plan.options import AUTO, Options

MODEL, MACHINE, SAMPLING = "Model", "Machine", "Sampling"  # panels of --help
SWITCH = ""  # the metavar of a flag that takes no value

WHAT_A_MODEL_IS = "A name from `ringkv models`, a directory in Hugging Face layout, a .gguf file, or a hub id"


def _model(help: str) -> Any:
    return typer.Option("--model", "-m", metavar="NAME", help=f"{WHAT_A_MODEL_IS}{help}.", rich_help_panel=MODEL)


ModelName = Annotated[str, _model("")]
ModelNames = Annotated[list[str], _model("; repeatable")]
AsJson = Annotated[bool, typer.Option("--json", metavar=SWITCH, help="Print one JSON value on stdout, for programs.")]


_cache, _machine = partial(option, CACHE), partial(option, MACHINE)
_tokens = partial(_machine, metavar="TOKENS", parser=token_count)
_sampling = partial(option, SAMPLING, show_default=True)


@dataclass(frozen=True)
class _Model:
    model: ModelName = "smollm2"


@dataclass(frozen=True)
class _Models:
    model: ModelNames = field(default_factory=lambda: ["smollm2"])


@dataclass(frozen=True)
class _Workspace:
    prefill_workspace: Annotated[
        int | None,
        _tokens(
            "--prefill-workspace",
            help="Staged tokens of one prompt at most; a longer prompt is compressed while it is prefilled. "
            "Default: the longest prompt, so that prompts are prefilled exactly.",
        ),
    ] = None


@dataclass(frozen=True)
class _Lengths(_Workspace):
    prompt_tokens: Annotated[
        int | None,
        _tokens(
            "--max-prompt",
            help="Longest prompt, such as 32k. Default: the model's context, at most 32k, or less if memory is short.",
        ),
    ] = None
    output_tokens: Annotated[
        int | None,
        _tokens("--max-output", help="Longest output with policy full; 1024 by default."),
    ] = None


@dataclass(frozen=True)
class _Slots:
    slots: Annotated[
        int | None,
        _machine("--slots", "N", "Concurrent requests; 1 by default, 8 for serve, bench and eval."),
    ] = None


@dataclass(frozen=True)
class ComputeOptions:
    """How a command computes: fields of `plan.options.Options`."""

    dtype: Annotated[
        str | None,
        _machine("--dtype", "TYPE", "dtype of weights and cache: bfloat16 (default), float16 or float32."),
    ] = None
    weights: Annotated[
        str | None,
        _machine("--weights", "BITS", "Weight precision: bf16 (default), int8 or int4; fewer bits decode faster."),
    ] = None
    activations: Annotated[
        str | None,
        _machine(
            "--activations",
            "BITS",
            "What int8 and int4 weights are multiplied with: int8, 16-bit or auto (default, the faster one); or int4, "
            "which takes int4 weights and is not faster.",
        ),
    ] = None
    device: Annotated[
        str | None,
        _machine("--device", "NAME", "cpu (default) or cuda:0; `ringkv doctor` lists the devices."),
    ] = None
    threads: Annotated[
        int | None,
        _machine("--threads", "N", "Compute threads; by default one per usable CPU."),
    ] = None


@dataclass(frozen=True)
class _Graphs:
    graphs: Annotated[
        str | None,
        _machine(
            "--graphs",
            "WHEN",
            "When static graphs are compiled: compiled (before the start), background (meanwhile plain functions run) "
            "or off. By default auto: background for serve, else compiled, if there is a compiler.",
        ),
    ] = None


@dataclass(frozen=True)
class _Machine(_Graphs, ComputeOptions, _Slots):
    """How an engine computes, for how many requests."""


@dataclass(frozen=True)
class _Speculation:
    speculate: Annotated[
        int | None,
        _machine(
            "--speculate",
            "N",
            "Draft N tokens ahead by prompt lookup; 0 by default. 3 suits code editing and extraction. "
            "The output is the same.",
        ),
    ] = None


@dataclass(frozen=True)
class _Steps:
    max_step: Annotated[
        int | None,
        _machine(
            "--max-step",
            "MS",
            "Longest time between two tokens of a request while other prompts are prefilled, if it is more than two "
            "decode steps; 150 by default. More prefills faster.",
        ),
    ] = None


@dataclass(frozen=True)
class _Ranks:
    tensor_parallel: Annotated[
        int | None,
        _machine(
            "--tensor-parallel,--tp",
            "N",
            "Processes that divide the model, such as one per socket; 1 by default. --threads is for each of them.",
        ),
    ] = None
    expert_parallel: Annotated[
        bool | None,
        _machine(
            "--expert-parallel,--ep",
            SWITCH,
            "Give each of these processes whole experts instead of a share of every expert; vLLM's "
            "--enable-expert-parallel.",
        ),
    ] = None
    nnodes: Annotated[
        int | None, _machine("--nnodes", "N", "Machines that run equally many of these processes; 1 by default.")
    ] = None
    node_rank: Annotated[
        int | None, _machine("--node-rank", "N", "Index of this machine; 0 serves, the others follow it.")
    ] = None
    master_addr: Annotated[
        str | None,
        _machine("--master-addr", "HOST", "Address at which machine 0 listens; 127.0.0.1 by default."),
    ] = None
    master_port: Annotated[
        int | None, _machine("--master-port", "PORT", "Port of machine 0, 29500 by default. It uses the next one too.")
    ] = None
    attention_parallel: Annotated[
        str | None,
        _machine(
            "--attention-parallel",
            "WHAT",
            "What the processes divide of latent attention (DeepSeek) in decode: slots, whose number becomes a "
            "multiple of --tensor-parallel (data-parallel attention), or heads, so that each holds all slots. "
            "By default slots if each gets one. Other models divide heads.",
        ),
    ] = None


@dataclass(frozen=True)
class _PrefixStore:
    prefix_store: Annotated[
        str,
        _cache(
            "--prefix-store",
            "BYTES",
            "Host memory for the prefix cache; 0 disables it; by default 1GB, if it fits.",
        ),
    ] = AUTO


# dataclass fields are ordered from the last base to the first; --help shows them in that order.
@dataclass(frozen=True)
class _StudySettings(_Machine, SelectionSettings, ProfileSettings, PageSettings, FormatSettings):
    def options(self, slots: int = 1) -> Options:
        """Return the planner's options; None leaves one open. `slots` is the command's default."""
        chosen = {one.name: getattr(self, one.name) for one in fields(Options) if hasattr(self, one.name)}
        chosen["slots"] = slots if self.slots is None else self.slots
        return Options(**chosen)


@dataclass(frozen=True)
class _EngineSettings(_StudySettings, _Speculation, _Lengths, CompressionSettings, BudgetSettings):
    """All settings of an engine."""


@dataclass(frozen=True)
class _ConversationSettings(_EngineSettings, _PrefixStore, TurnSettings, SelectionSettings):
    """All settings of an engine for conversations."""


@dataclass(frozen=True)
class StudyOptions(_StudySettings, _Workspace, _Model):
    """Options of a command that sets policies, budgets and the longest prompt itself."""


@dataclass(frozen=True)
class EngineOptions(_EngineSettings, _Model):
    """Options of an engine. All except `model` are fields of `plan.options.Options`."""


@dataclass(frozen=True)
class ConversationOptions(_ConversationSettings, EngineOptions, _Model):
    """Options of an engine for conversations."""


@dataclass(frozen=True)
class ServingOptions(_ConversationSettings, _Steps, _Ranks, _Models):
    """Options of one or more engines for conversations, which differ in their model."""


@dataclass(frozen=True)
class Sampling:
    """The fields of `SamplingParams` that make sense on a command line."""

    max_tokens: Annotated[int, _sampling("--max-tokens", "N", "Maximum tokens to generate.")] = 256
    temperature: Annotated[float, _sampling("--temperature", "T", "0 is greedy decoding.")] = 0.0
    top_p: Annotated[
        float, _sampling("--top-p", "P", "Sample from the top tokens whose probabilities add up to P; 1 is all.")
    ] = 1.0
    top_k: Annotated[int, _sampling("--top-k", "K", "Sample from the K most probable tokens; 0 is all.")] = 0
    min_p: Annotated[
        float, _sampling("--min-p", "P", "Sample from tokens with at least P times the top probability; 0 is all.")
    ] = 0.0
    seed: Annotated[
        int | None, _sampling("--seed", "N", "Seed of the sampler; random by default.", show_default=False)
    ] = None
    stop: Annotated[
        list[str] | None,
        _sampling("--stop", "TEXT", "Stop at this text, which is not output; repeatable.", show_default=False),
    ] = None
    min_tokens: Annotated[int, _sampling("--min-tokens", "N", "Generate at least this many tokens.")] = 0
    ignore_eos: Annotated[
        bool,
        _sampling("--ignore-eos", SWITCH, "Continue to --max-tokens past end-of-sequence tokens.", show_default=False),
    ] = False
    repetition_penalty: Annotated[
        float,
        _sampling("--repetition-penalty", "F", "Above 1 penalises tokens of the prompt and the output; 1 is off."),
    ] = 1.0
    presence_penalty: Annotated[
        float, _sampling("--presence-penalty", "F", "Above 0 penalises tokens of the output; 0 is off.")
    ] = 0.0
    frequency_penalty: Annotated[
        float, _sampling("--frequency-penalty", "F", "Above 0 penalises tokens by their count in the output; 0 is off.")
    ] = 0.0

    def params(self) -> SamplingParams:
        """Raises `InvalidRequest`, which names the invalid option."""
        return SamplingParams(**{**vars(self), "stop": tuple(self.stop or ())})
