"""Options that several commands share: which model, which cache, which machine, and how tokens are drawn."""

from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from ringkv.base.sampling import SamplingParams
from ringkv.plan.options import Options

MODEL, CACHE, MACHINE, SAMPLING = "Model", "Cache", "Machine", "Sampling"  # panels of --help

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
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout, for programs.")]


def _cache(flag: str, metavar: str | None, help: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=help, rich_help_panel=CACHE, show_default=False)


def _machine(flag: str, metavar: str, help: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=help, rich_help_panel=MACHINE, show_default=False)


def _sampling(flag: str, metavar: str | None, help: str, show: bool = True) -> Any:
    return typer.Option(flag, metavar=metavar, help=help, rich_help_panel=SAMPLING, show_default=show)


Sinks = Annotated[
    int | None,
    _cache("--kv-sinks", "TOKENS", "Leading tokens that are never evicted; 4 by default."),
]
Recent = Annotated[
    str | None,
    _cache("--kv-recent", "SHARE", "The newest tokens' part: a count, or a share of the budget; 25% by default."),
]
Window = Annotated[
    int | None,
    _cache("--kv-window", "TOKENS", "Trailing prompt tokens that vote on what is kept; 64 by default."),
]
Kernel = Annotated[
    int | None,
    _cache("--kv-kernel", "TOKENS", "Width over which votes are pooled, an odd number; 5 by default."),
]
Pooling = Annotated[
    str | None,
    _cache("--kv-pooling", "NAME", "How votes are pooled: avg (the default) or max."),
]
Domain = Annotated[
    str | None,
    _cache("--kv-domain", "NAME", "What votes are shares of: the causal row (the default) or the candidates."),
]
Selector = Annotated[
    str | None,
    _cache("--kv-select", "NAME", "Who chooses: snapkv (the default), tova, keydiff, expected or kvzip."),
]
PaperLayout = Annotated[
    bool,
    _cache("--kv-paper-layout", None, "Do not lend a short prompt's unused entries to the ring."),
]
Slots = Annotated[
    int | None,
    _machine("--slots", "N", "Requests that decode together; 1, but 8 for serve and bench."),
]
DType = Annotated[
    str | None,
    _machine("--dtype", "TYPE", "Of weights and cache: bfloat16 (the default), float16 or float32."),
]
Weights = Annotated[
    str | None,
    _machine("--weights", "BITS", "Of the matrices: bf16 (the default), int8 or int4; fewer are read faster."),
]
Device = Annotated[
    str | None,
    _machine("--device", "NAME", "cpu (the default) or cuda:0; `ringkv doctor` lists what there is."),
]
Graphs = Annotated[
    str | None,
    _machine("--graphs", "WHEN", "Static graphs: auto (where they can be built, the default), compiled or off."),
]
Threads = Annotated[
    int | None,
    _machine("--threads", "N", "Threads to compute with; one for each usable CPU by default."),
]


@dataclass(frozen=True)
class EngineOptions:
    """What an engine is made from. All but the first and `kv_paper_layout` are fields of `plan.options.Options`."""

    model: ModelName = "smollm2"
    kv_policy: Annotated[
        str | None,
        _cache("--kv-policy", "NAME", "What is kept: full, streaming, snapkv or snapstream (the default)."),
    ] = None
    kv_budget: Annotated[
        int | None,
        _cache(
            "--kv-budget", "ENTRIES", "Tokens that a request may hold, however long it gets; 2048, but 512 for demo."
        ),
    ] = None
    kv_compression: Annotated[
        str | None,
        _cache("--kv-compression", "RATIO", "Instead of a budget: the longest prompt divided by this, such as 4x."),
    ] = None
    kv_sinks: Sinks = None
    kv_recent: Recent = None
    kv_window: Window = None
    kv_kernel: Kernel = None
    kv_pooling: Pooling = None
    kv_domain: Domain = None
    kv_select: Selector = None
    kv_paper_layout: PaperLayout = False
    slots: Slots = None
    prompt_tokens: Annotated[
        int | None,
        _machine(
            "--max-prompt",
            "TOKENS",
            "Longest prompt to make room for; by default the model's context, at most 32768, or what fits.",
        ),
    ] = None
    output_tokens: Annotated[
        int | None,
        _machine("--max-output", "TOKENS", "Longest output to make room for under policy full; 1024 by default."),
    ] = None
    dtype: DType = None
    weights: Weights = None
    device: Device = None
    graphs: Graphs = None
    threads: Threads = None

    def options(self, slots: int = 1) -> Options:
        """None leaves a choice open; `slots` is what a command takes that was not told."""
        return _options(self, slots)


@dataclass(frozen=True)
class StudyOptions:
    """The same of a command that chooses policies, budgets and the longest prompt itself."""

    model: ModelName = "smollm2"
    kv_sinks: Sinks = None
    kv_recent: Recent = None
    kv_window: Window = None
    kv_kernel: Kernel = None
    kv_pooling: Pooling = None
    kv_domain: Domain = None
    kv_select: Selector = None
    kv_paper_layout: PaperLayout = False
    slots: Slots = None
    dtype: DType = None
    weights: Weights = None
    device: Device = None
    graphs: Graphs = None
    threads: Threads = None

    def options(self, slots: int = 1) -> Options:
        """As those of `EngineOptions`."""
        return _options(self, slots)


def _options(given: EngineOptions | StudyOptions, slots: int) -> Options:
    chosen = {one.name: getattr(given, one.name) for one in fields(Options) if hasattr(given, one.name)}
    chosen["slots"] = slots if given.slots is None else given.slots
    return Options(**chosen, kv_elastic=False if given.kv_paper_layout else None)


@dataclass(frozen=True)
class Sampling:
    """The fields of `SamplingParams` that make sense on a command line."""

    max_tokens: Annotated[int, _sampling("--max-tokens", "N", "Longest answer.")] = 256
    temperature: Annotated[float, _sampling("--temperature", "T", "0 takes the likeliest token each time.")] = 0.0
    top_p: Annotated[
        float, _sampling("--top-p", "P", "Draw from the likeliest tokens that make up this probability.")
    ] = 1.0
    top_k: Annotated[int, _sampling("--top-k", "K", "Draw from so many of the likeliest tokens; 0 is all.")] = 0
    min_p: Annotated[
        float, _sampling("--min-p", "P", "Draw from tokens with this share of the likeliest one's probability.")
    ] = 0.0
    seed: Annotated[
        int | None, _sampling("--seed", "N", "The same seed draws the same tokens; another each time.", False)
    ] = None
    stop: Annotated[
        list[str] | None, _sampling("--stop", "TEXT", "End before this text; may be given several times.", False)
    ] = None
    min_tokens: Annotated[int, _sampling("--min-tokens", "N", "Do not end before so many tokens.")] = 0
    ignore_eos: Annotated[
        bool, _sampling("--ignore-eos", None, "Go on to --max-tokens whatever the model says.", False)
    ] = False
    repetition_penalty: Annotated[
        float, _sampling("--repetition-penalty", "F", "Above 1 discourages tokens of the prompt and the answer.")
    ] = 1.0
    presence_penalty: Annotated[
        float, _sampling("--presence-penalty", "F", "Above 0 discourages tokens that the answer has.")
    ] = 0.0
    frequency_penalty: Annotated[
        float, _sampling("--frequency-penalty", "F", "The same, by how often it has them.")
    ] = 0.0

    def params(self) -> SamplingParams:
        """Raises `InvalidRequest` naming the option at fault."""
        return SamplingParams(**{**vars(self), "stop": tuple(self.stop or ())})
