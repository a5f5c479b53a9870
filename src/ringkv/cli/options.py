"""Flags that several commands share. Each is declared once, and a command takes a group of them (`spread.Flags`)."""

import re
from functools import partial
from typing import Annotated, Any, get_args, get_type_hints

import typer

from ringkv.base.errors import InvalidRequest
from ringkv.base.sampling import SamplingParams
from ringkv.cli.spread import LESS_COMMON, Flags
from ringkv.plan.kv_settings import AT_START
from ringkv.plan.options import Options
from ringkv.plan.report import PlanRequest

MODEL, CACHE, MACHINE, SAMPLING = "Model", "Cache", "Machine", "Sampling"  # panels of --help
RARE_CACHE, RARE_MACHINE, RARE_SAMPLING = (f"{LESS_COMMON}: {name}" for name in ("cache", "machine", "sampling"))
SWITCH = ""  # the metavar of a flag that takes no value

WHAT_A_MODEL_IS = "A name from `ringkv models`, a directory in Hugging Face layout, a .gguf file, or a hub id"
MODEL_NAME = "smollm2"  # of commands that measure: a small download
ANSWERING_MODEL = "qwen2.5-coder-1.5b"  # of those whose answers people read; see `bench.everyday`


def parse_count(text: str, name: str) -> int:
    """Parse a count; k is 1,024 and m is 1,048,576, as in context lengths. Raises `InvalidRequest`."""
    match = re.fullmatch(r"(\d{1,3}(?:[,_]\d{3})+|\d+(?:\.\d+(?=[km]))?)([km]?)", text.strip(), re.IGNORECASE)
    if match is None:
        raise InvalidRequest(f"{name} is {text!r}; write a count such as 7000 or 128k (which is 131,072)", name)
    return int(float(re.sub("[,_]", "", match[1])) * {"": 1, "k": 2**10, "m": 2**20}[match[2].lower()])


def token_count(value: str | int) -> int:
    """Parse a flag's count, or the number that a configuration file has. Raises `typer.BadParameter`."""
    try:
        return parse_count(str(value), "the count")
    except InvalidRequest as error:
        raise typer.BadParameter("give a whole number, such as 7000 or 32k (which is 32,768)") from error


def option(
    panel: str | None, flag: str, metavar: str | None, help: str, show_default: bool = False, **more: Any
) -> Any:
    """Return the typer option. A default is shown only on request: most helps say it in words.

    flag: one name, or several with commas between.
    """
    return typer.Option(
        *flag.split(","), metavar=metavar, help=help, rich_help_panel=panel, show_default=show_default, **more
    )


unpanelled = partial(option, None, show_default=True)
"""For options of a single command."""

ModelName = Annotated[str, option(MODEL, "--model,-m", "NAME", f"{WHAT_A_MODEL_IS}.", show_default=True)]
ModelNames = Annotated[
    list[str], option(MODEL, "--model,-m", "NAME", f"{WHAT_A_MODEL_IS}; repeatable.", show_default=True)
]
AsJson = Annotated[bool, unpanelled("--json", SWITCH, "Print one JSON value on stdout, for programs.")]


def setting(name: str, panel: str = CACHE) -> Any:
    """Return the annotation of a setting that a server starts with. Most are strings, parsed where they are checked."""
    declared = AT_START[name]
    kind = declared.kind if declared.kind in (int, bool) else str
    parser = token_count if kind is int else None
    flags = declared.flags or "--" + name.replace("_", "-")
    return Annotated[kind | None, option(panel, flags, declared.unit, declared.described, parser=parser)]


def flag(name: str, metavar: str, help: str, panel: str = MACHINE, flags: str = "") -> Any:
    """Return the annotation of a field of `PlanRequest` and so of `Options`. TOKENS may be written as 32k.

    flags: if they are not the name with dashes.
    """
    members = get_args(_HINTS[name])
    kind: Any = bool if bool in members else int if int in members and str not in members else str
    parser = token_count if metavar == "TOKENS" else None
    return Annotated[kind | None, option(panel, flags or "--" + name.replace("_", "-"), metavar, help, parser=parser)]


_HINTS = get_type_hints(PlanRequest)
_BUDGET = ("kv_policy", "kv_budget", "kv_compression")
_TURNS = ("kv_turns", "prefix_store")
_RANKS = (
    *("tensor_parallel", "expert_parallel", "attention_parallel", "max_step"),
    *("nnodes", "node_rank", "master_addr", "master_port"),
)
_DRAFTS = ("speculate", "speculative_config")
_COMPUTE = ("dtype", "weights", "activations", "device", "threads")
_COMMON = (*_BUDGET, "prompt_tokens", "slots", "weights", "device")
_FLAGS = {"prompt_tokens": "--max-prompt", "output_tokens": "--max-output"}
_FLAGS |= {"tensor_parallel": "--tensor-parallel,--tp", "expert_parallel": "--expert-parallel,--ep"}
_HELPS = {
    "tensor_parallel": (
        "N",
        "Processes that divide the model, such as one per socket; 1 by default. --threads is for each of them.",
    ),
    "expert_parallel": (
        SWITCH,
        "Give each of these processes whole experts instead of a share of every expert; vLLM's "
        "--enable-expert-parallel.",
    ),
    "nnodes": ("N", "Machines that run equally many of these processes; 1 by default."),
    "node_rank": ("N", "Index of this machine; 0 serves, the others follow it."),
    "master_addr": ("HOST", "Address at which machine 0 listens; 127.0.0.1 by default."),
    "master_port": ("PORT", "Port of machine 0, 29500 by default. It uses the next one too."),
    "attention_parallel": (
        "WHAT",
        "What the processes divide of latent attention (DeepSeek) in decode: slots, whose number becomes a "
        "multiple of --tensor-parallel (data-parallel attention), or heads, so that each holds all slots. "
        "By default slots if each gets one. Other models divide heads.",
    ),
    "max_step": (
        "MS",
        "Longest time between two tokens of a request while other prompts are prefilled, if it is more than two "
        "decode steps; 150 by default. More prefills faster.",
    ),
    "prefill_workspace": (
        "TOKENS",
        "Staged tokens of one prompt at most; a longer prompt is compressed while it is prefilled. "
        "Default: the longest prompt, so that prompts are prefilled exactly.",
    ),
    "prompt_tokens": (
        "TOKENS",
        "Longest prompt, such as 32k. Default: the model's context, at most 32k, or less if memory is short.",
    ),
    "output_tokens": ("TOKENS", "Longest output with policy full; 1024 by default."),
    "speculate": (
        "N",
        "Draft N tokens ahead by prompt lookup; 0 by default. 3 suits code editing and extraction. "
        "The output is the same.",
    ),
    "speculative_config": (
        "JSON",
        'Draft with a smaller model of the same family: {"model": "qwen2.5-coder-0.5b", "num_speculative_tokens": 3}. '
        "The output is the same.",
    ),
    "slots": ("N", "Concurrent requests; 1 by default, 8 for serve, bench and eval."),
    "dtype": ("TYPE", "dtype of weights and cache: bfloat16 (default), float16 or float32."),
    "weights": ("BITS", "Weight precision: bf16 (default, but int4 for qwen2.5-coder-1.5b), int8 or int4."),
    "activations": (
        "BITS",
        "What int8 and int4 weights are multiplied with: int8, 16-bit or auto (default, the faster one); or int4, "
        "which takes int4 weights and is not faster.",
    ),
    "device": ("NAME", "cpu (default) or cuda:0; `ringkv doctor` lists the devices."),
    "threads": ("N", "Compute threads; by default one per usable CPU."),
    "graphs": (
        "WHEN",
        "When static graphs are compiled: compiled (before the start), background (meanwhile plain functions run) "
        "or off. By default auto: compiled for bench, eval and profile, else background, if there is a compiler.",
    ),
}
_PREFIX_STORE = "Host memory for the prefix cache; 0 disables it; by default 1GB, if it fits."
_ALL = (
    {name: setting(name) for name in _BUDGET}
    | {
        name: flag(name, *text, MACHINE if name in _COMMON else RARE_MACHINE, _FLAGS.get(name, ""))
        for name, text in _HELPS.items()
    }
    | {name: setting(name, RARE_CACHE) for name in AT_START if name not in _BUDGET}
    | {"prefix_store": flag("prefix_store", "BYTES", _PREFIX_STORE, RARE_CACHE)}
)


def _without(*names: str) -> Flags:
    return Flags((name, annotation) for name, annotation in _ALL.items() if name not in names)


ServingOptions = Annotated[Options, Flags(_ALL)]
"""Of one or more engines for conversations, which differ in their model."""
ConversationOptions = Annotated[Options, _without(*_RANKS)]
"""Of an engine for conversations."""
EngineOptions = Annotated[Options, _without(*_RANKS, *_TURNS)]
"""Of an engine."""
StudyOptions = Annotated[Options, _without(*_RANKS, *_TURNS, *_BUDGET, "prompt_tokens", "output_tokens", *_DRAFTS)]
"""Of a command that sets policies, budgets and the longest prompt itself."""
ComparisonOptions = Annotated[
    Options, _without(*_RANKS, *_TURNS, *_BUDGET, "slots", "output_tokens", *_DRAFTS, "prefill_workspace")
]
"""Of an engine with one slot that holds a whole prompt, for a command that sets policies and budgets itself."""
ComputeOptions = Annotated[Options, Flags((name, _ALL[name]) for name in _COMPUTE)]
"""How a command computes."""


def _sampled(name: str, metavar: str, help: str) -> Any:
    """Return the annotation of a field of `SamplingParams`. Its default is shown unless it is empty."""
    default = getattr(SamplingParams, name)
    kind: Any = list[str] if default == () else get_type_hints(SamplingParams)[name]
    panel = SAMPLING if name in ("max_tokens", "temperature", "top_p", "seed", "stop") else RARE_SAMPLING
    is_shown = default not in (None, ()) and default is not False
    return Annotated[kind, option(panel, "--" + name.replace("_", "-"), metavar, help, is_shown)]


_SAMPLED = {
    "max_tokens": ("N", "Maximum tokens to generate."),
    "temperature": ("T", "0 is greedy decoding."),
    "top_p": ("P", "Sample from the top tokens whose probabilities add up to P; 1 is all."),
    "seed": ("N", "Seed of the sampler; random by default."),
    "stop": ("TEXT", "Stop at this text, which is not output; repeatable."),
    "top_k": ("K", "Sample from the K most probable tokens; 0 is all."),
    "min_p": ("P", "Sample from tokens with at least P times the top probability; 0 is all."),
    "min_tokens": ("N", "Generate at least this many tokens."),
    "ignore_eos": (SWITCH, "Continue to --max-tokens past end-of-sequence tokens."),
    "repetition_penalty": ("F", "Above 1 penalises tokens of the prompt and the output; 1 is off."),
    "presence_penalty": ("F", "Above 0 penalises tokens of the output; 0 is off."),
    "frequency_penalty": ("F", "Above 0 penalises tokens by their count in the output; 0 is off."),
}
Sampling = Annotated[SamplingParams, Flags((name, _sampled(name, *text)) for name, text in _SAMPLED.items())]
"""The fields of `SamplingParams` that make sense on a command line."""
