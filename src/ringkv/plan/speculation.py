"""speculation: where drafts come from, by vLLM's keys, and the draft model's engine.

{"method": "draft_model", "model": "qwen2.5-coder-0.5b", "num_speculative_tokens": 3}
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, get_args

from ringkv.base.config import Weights
from ringkv.base.errors import InvalidRequest
from ringkv.models.config import ModelConfig, load_config
from ringkv.plan.options import Options

NAME = "speculative_config"
MOST_DRAFTS = 7
USUAL_DRAFTS = 3
WINDOW = 1024  # tokens; a draft continues what was said last
FEW_SLOTS = 8  # of a draft model with int4 weights, whose steps then take several tokens of a slot
METHODS: Mapping[str, str] = {
    "eagle3": "its weights are published for few models",
    "eagle": "its weights are published for few models",
    "suffix": "ngram finds nearly the same drafts",
    "medusa": "its weights are published for few models",
    "mtp": "the weights of multi-token prediction are skipped when a model is loaded",
}
"""Methods of other servers that are not implemented, and why."""


@dataclass(frozen=True)
class Speculation:
    """method: "ngram" is prompt lookup. model: of draft_model, a name or directory; else "". tokens: drafts of a step.

    window: entries of a slot of the draft model, and the newest tokens of a text that it is prefilled with.
    """

    method: str = "ngram"
    model: str = ""
    tokens: int = 0
    window: int = WINDOW
    weights: Weights | None = None

    @classmethod
    def of(cls, options: Options) -> "Speculation":
        """Parse the options `speculate` and `speculative_config`. Raises InvalidRequest naming the one at fault."""
        given = options.speculative_config
        if given is None:
            return cls(tokens=_count(options.speculate or 0, "speculate", 0))
        if options.speculate is not None:
            raise InvalidRequest("speculate and speculative_config both set drafts; leave one of them out", "speculate")
        fields = _object(given)
        method = fields.pop("method", "draft_model" if "model" in fields else "ngram")
        if isinstance(method, str) and method in METHODS:
            _refuse(f"method {method} is not implemented: {METHODS[method]}; choose draft_model or ngram")
        if method not in ("ngram", "draft_model"):
            _refuse(f"method is {method!r}; it must be draft_model or ngram")
        tokens = _count(fields.pop("num_speculative_tokens", USUAL_DRAFTS), f"{NAME}: num_speculative_tokens", 1)
        made = cls(method, tokens=tokens)
        if method == "draft_model":
            model = fields.pop("model", None)
            if not isinstance(model, str) or not model:
                _refuse("method draft_model needs a model: a name, a directory, a .gguf file or a hub id")
            window = fields.pop("draft_window", WINDOW)
            if not isinstance(window, int) or window < 64:
                _refuse(f"draft_window is {window!r}; it must be a number of tokens, at least 64")
            weights = fields.pop("draft_weights", None)
            if weights not in (None, *get_args(Weights)):
                _refuse(f"draft_weights is {weights!r}; it must be one of {', '.join(get_args(Weights))}")
            made = replace(made, model=model, window=window, weights=weights)
        if fields:
            known = "method, model, num_speculative_tokens, draft_window and draft_weights"
            _refuse(f"the key {next(iter(fields))!r} is unknown, or not for method {method}; the keys are {known}")
        return made

    def options(self, target: Options, slots: int, context: int) -> Options:
        """Return the options of the draft model's engine: the target's computer, and a ring of its own.

        After a step whose drafts were all kept, the draft model is fed two tokens at once. Half of its `context` is
        left for answers.
        """
        window = min(self.window, context // 2)
        return Options(
            kv_policy="streaming",
            kv_budget=window,
            prompt_tokens=window,
            slots=slots,
            speculate=int(slots <= FEW_SLOTS),
            weights=self.weights,
            dtype=target.dtype,
            device=target.device,
            graphs=target.graphs,
            threads=target.threads,
            max_step=target.max_step,
        )


def with_model(options: Options, folder: Path) -> Options:
    """Return the options with the draft model's directory in place of its name."""
    return replace(options, speculative_config=_object(options.speculative_config) | {"model": str(folder)})


def draft_config(speculation: Speculation, target: ModelConfig) -> tuple[Path, ModelConfig]:
    """Return the draft model's directory and configuration. Raises InvalidRequest for another vocabulary."""
    folder = Path(speculation.model)
    config = load_config(folder)
    if config.vocab_size != target.vocab_size:
        _refuse(
            f"the draft model has a vocabulary of {config.vocab_size:,} tokens and the model {target.vocab_size:,}; "
            "take a draft model of the same family"
        )
    return folder, config


def _object(given: Any) -> dict[str, Any]:
    try:
        fields = json.loads(given) if isinstance(given, str) else given
    except ValueError as error:
        _refuse(f"it is not JSON: {error}")
    if not isinstance(fields, Mapping):
        _refuse('give an object, such as {"method": "draft_model", "model": "qwen2.5-coder-0.5b"}')
    return dict(fields)


def _count(value: Any, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_DRAFTS:
        raise InvalidRequest(f"{name} is {value!r}; it must be {least} to {MOST_DRAFTS}", name.partition(":")[0])
    return value


def _refuse(text: str) -> NoReturn:
    raise InvalidRequest(f"{NAME}: {text}", NAME)
