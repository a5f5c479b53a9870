"""Flags that several commands share. Each is declared once, and a command takes a group of them (`spread.Flags`)."""

from typing import Annotated, Any

import typer

from ringkv.base.sampling import SamplingParams
from ringkv.cli.counts import token_count
from ringkv.cli.spread import LESS_COMMON, Flags
from ringkv.plan.kv_settings import AT_START
from ringkv.plan.options import Options

MODEL, CACHE, MACHINE, SAMPLING = "Model", "Cache", "Machine", "Sampling"  # panels of --help
RARE_CACHE, RARE_MACHINE, RARE_SAMPLING = (f"{LESS_COMMON}: {name}" for name in ("cache", "machine", "sampling"))
SWITCH = ""  # the metavar of a flag that takes no value

WHAT_A_MODEL_IS = "A name from `ringkv models`, a directory in Hugging Face layout, a .gguf file, or a hub id"
MODEL_NAME = "smollm2"


def option(panel: str, flag: str, metavar: str | None, help: str, show_default: bool = False, **more: Any) -> Any:
    """Return the typer option. A default is shown only on request: most helps say it in words.

    flag: one name, or several with commas between.
    """
    return typer.Option(
        *flag.split(","), metavar=metavar, help=help, rich_help_panel=panel, show_default=show_default, **more
    )


ModelName = Annotated[str, option(MODEL, "--model,-m", "NAME", f"{WHAT_A_MODEL_IS}.", show_default=True)]
ModelNames = Annotated[
    list[str], option(MODEL, "--model,-m", "NAME", f"{WHAT_A_MODEL_IS}; repeatable.", show_default=True)
]
AsJson = Annotated[bool, typer.Option("--json", metavar=SWITCH, help="Print one JSON value on stdout, for programs.")]


def setting(name: str, panel: str = CACHE) -> Any:
    """Return the annotation of a setting that a server starts with. Most are strings, parsed where they are checked."""
    declared = AT_START[name]
    kind = declared.kind if declared.kind in (int, bool) else str
    parser = token_count if kind is int else None
    flag = declared.flags or "--" + name.replace("_", "-")
    return Annotated[kind | None, option(panel, flag, declared.unit, declared.described, parser=parser)]


def machine(flag: str, metavar: str, help: str, kind: type = str, panel: str = MACHINE) -> Any:
    """Return the annotation of an option that is None unless it is set. TOKENS may be written as 32k."""
    parser = token_count if metavar == "TOKENS" else None
    return Annotated[kind | None, option(panel, flag, metavar, help, parser=parser)]


def _rare(flag: str, metavar: str, help: str, kind: type = str) -> Any:
    return machine(flag, metavar, help, kind, RARE_MACHINE)


_BUDGET = {name: setting(name) for name in ("kv_policy", "kv_budget", "kv_compression")}
_RANKS = {
    "tensor_parallel": _rare(
        "--tensor-parallel,--tp",
        "N",
        "Processes that divide the model, such as one per socket; 1 by default. --threads is for each of them.",
        int,
    ),
    "expert_parallel": _rare(
        "--expert-parallel,--ep",
        SWITCH,
        "Give each of these processes whole experts instead of a share of every expert; vLLM's "
        "--enable-expert-parallel.",
        bool,
    ),
    "nnodes": _rare("--nnodes", "N", "Machines that run equally many of these processes; 1 by default.", int),
    "node_rank": _rare("--node-rank", "N", "Index of this machine; 0 serves, the others follow it.", int),
    "master_addr": _rare("--master-addr", "HOST", "Address at which machine 0 listens; 127.0.0.1 by default."),
    "master_port": _rare(
        "--master-port", "PORT", "Port of machine 0, 29500 by default. It uses the next one too.", int
    ),
    "attention_parallel": _rare(
        "--attention-parallel",
        "WHAT",
        "What the processes divide of latent attention (DeepSeek) in decode: slots, whose number becomes a "
        "multiple of --tensor-parallel (data-parallel attention), or heads, so that each holds all slots. "
        "By default slots if each gets one. Other models divide heads.",
    ),
}
_STEPS = {
    "max_step": _rare(
        "--max-step",
        "MS",
        "Longest time between two tokens of a request while other prompts are prefilled, if it is more than two "
        "decode steps; 150 by default. More prefills faster.",
        int,
    ),
}
_WORKSPACE = {
    "prefill_workspace": _rare(
        "--prefill-workspace",
        "TOKENS",
        "Staged tokens of one prompt at most; a longer prompt is compressed while it is prefilled. "
        "Default: the longest prompt, so that prompts are prefilled exactly.",
        int,
    ),
}
_LENGTHS = {
    "prompt_tokens": machine(
        "--max-prompt",
        "TOKENS",
        "Longest prompt, such as 32k. Default: the model's context, at most 32k, or less if memory is short.",
        int,
    ),
    "output_tokens": _rare("--max-output", "TOKENS", "Longest output with policy full; 1024 by default.", int),
    "speculate": _rare(
        "--speculate",
        "N",
        "Draft N tokens ahead by prompt lookup; 0 by default. 3 suits code editing and extraction. "
        "The output is the same.",
        int,
    ),
}
_SLOTS = {"slots": machine("--slots", "N", "Concurrent requests; 1 by default, 8 for serve, bench and eval.", int)}
_COMPUTE = {
    "dtype": _rare("--dtype", "TYPE", "dtype of weights and cache: bfloat16 (default), float16 or float32."),
    "weights": machine(
        "--weights", "BITS", "Weight precision: bf16 (default), int8 or int4; fewer bits decode faster."
    ),
    "activations": _rare(
        "--activations",
        "BITS",
        "What int8 and int4 weights are multiplied with: int8, 16-bit or auto (default, the faster one); or int4, "
        "which takes int4 weights and is not faster.",
    ),
    "device": machine("--device", "NAME", "cpu (default) or cuda:0; `ringkv doctor` lists the devices."),
    "threads": _rare("--threads", "N", "Compute threads; by default one per usable CPU.", int),
}
_GRAPHS = {
    "graphs": _rare(
        "--graphs",
        "WHEN",
        "When static graphs are compiled: compiled (before the start), background (meanwhile plain functions run) "
        "or off. By default auto: background for serve, else compiled, if there is a compiler.",
    ),
}
_SELECTION = {name: setting(name, RARE_CACHE) for name in AT_START if name not in (*_BUDGET, "kv_turns")}
_TURNS = {
    "kv_turns": setting("kv_turns", RARE_CACHE),
    "prefix_store": Annotated[
        str | None,
        option(
            RARE_CACHE,
            "--prefix-store",
            "BYTES",
            "Host memory for the prefix cache; 0 disables it; by default 1GB, if it fits.",
        ),
    ],
}
_STUDY = _WORKSPACE | _SLOTS | _COMPUTE | _GRAPHS | _SELECTION
_ENGINE = _BUDGET | _WORKSPACE | _LENGTHS | _SLOTS | _COMPUTE | _GRAPHS | _SELECTION

ComputeOptions = Annotated[Options, Flags(_COMPUTE)]
"""How a command computes."""
StudyOptions = Annotated[Options, Flags(_STUDY)]
"""Of a command that sets policies, budgets and the longest prompt itself."""
EngineOptions = Annotated[Options, Flags(_ENGINE)]
"""Of an engine."""
ConversationOptions = Annotated[Options, Flags(_ENGINE | _TURNS)]
"""Of an engine for conversations."""
ServingOptions = Annotated[Options, Flags(_BUDGET | _RANKS | _STEPS | _ENGINE | _TURNS)]
"""Of one or more engines for conversations, which differ in their model."""


def _sampling(kind: Any, panel: str, flag: str, metavar: str, help: str, show_default: bool = True) -> Any:
    return Annotated[kind, option(panel, flag, metavar, help, show_default)]


Sampling = Annotated[
    SamplingParams,
    Flags(
        max_tokens=_sampling(int, SAMPLING, "--max-tokens", "N", "Maximum tokens to generate."),
        temperature=_sampling(float, SAMPLING, "--temperature", "T", "0 is greedy decoding."),
        top_p=_sampling(
            float, SAMPLING, "--top-p", "P", "Sample from the top tokens whose probabilities add up to P; 1 is all."
        ),
        seed=_sampling(int | None, SAMPLING, "--seed", "N", "Seed of the sampler; random by default.", False),
        stop=_sampling(
            list[str], SAMPLING, "--stop", "TEXT", "Stop at this text, which is not output; repeatable.", False
        ),
        top_k=_sampling(int, RARE_SAMPLING, "--top-k", "K", "Sample from the K most probable tokens; 0 is all."),
        min_p=_sampling(
            float,
            RARE_SAMPLING,
            "--min-p",
            "P",
            "Sample from tokens with at least P times the top probability; 0 is all.",
        ),
        min_tokens=_sampling(int, RARE_SAMPLING, "--min-tokens", "N", "Generate at least this many tokens."),
        ignore_eos=_sampling(
            bool,
            RARE_SAMPLING,
            "--ignore-eos",
            SWITCH,
            "Continue to --max-tokens past end-of-sequence tokens.",
            False,
        ),
        repetition_penalty=_sampling(
            float,
            RARE_SAMPLING,
            "--repetition-penalty",
            "F",
            "Above 1 penalises tokens of the prompt and the output; 1 is off.",
        ),
        presence_penalty=_sampling(
            float, RARE_SAMPLING, "--presence-penalty", "F", "Above 0 penalises tokens of the output; 0 is off."
        ),
        frequency_penalty=_sampling(
            float,
            RARE_SAMPLING,
            "--frequency-penalty",
            "F",
            "Above 0 penalises tokens by their count in the output; 0 is off.",
        ),
    ),
]
"""The fields of `SamplingParams` that make sense on a command line."""
