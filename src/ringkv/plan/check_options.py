"""check_options: refuses options that no model can have, before a model is downloaded."""

import os
from dataclasses import replace
from pathlib import Path

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import HEAD_BUDGETS
from ringkv.models.config import ModelConfig, parse_config
from ringkv.plan.auto_policy import settled
from ringkv.plan.checks import at_least, attention_parallel
from ringkv.plan.complete import complete
from ringkv.plan.head_profile import read
from ringkv.plan.options import Options
from ringkv.plan.speculation import Speculation

CONTEXT = 1 << 30  # tokens; longer than any model's
NOWHERE = Path(os.devnull)  # a folder without files


def check_options(options: Options) -> None:
    """Raise `InvalidRequest`, naming the option at fault, for what `complete` refuses whatever the model is.

    The options are completed for a plain model, which ranks can divide and whose context has no end. What depends on
    the model is left out: how long its context is, its experts and latents, and the profile of its heads.
    """
    at_least(1, "prefill_workspace", options.prefill_workspace, 1)
    attention_parallel(options.attention_parallel, False, 1)
    ranks = at_least(1, "tensor_parallel", options.tensor_parallel, 1)
    drafts = Speculation.of(options).tokens  # the draft model is not located yet
    plain = replace(options, prefill_workspace=None, attention_parallel=None, speculate=drafts, speculative_config=None)
    if options.prefill_workspace is not None:
        plain = plain.filled(prompt_tokens=CONTEXT)  # the default is then the model's context
    if ranks > 1:
        plain = replace(plain, expert_parallel=None)
    if options.kv_heads in HEAD_BUDGETS and options.kv_heads != "equal":
        plain = replace(plain, kv_heads="global", kv_profile=None)
        if options.kv_profile is not None:
            _check_profile(Path(options.kv_profile).expanduser())
    model = _plain_model(ranks)
    complete(NOWHERE, model, settled(NOWHERE, model, plain, {})[0])


def _check_profile(path: Path) -> None:
    if not path.is_file():
        raise InvalidRequest(
            f"kv_profile {path} does not exist; run ringkv profile MODEL, or leave it out", "kv_profile"
        )
    read(path)


def _plain_model(ranks: int) -> ModelConfig:
    return parse_config(
        {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 256 * ranks,
            "hidden_size": 128 * ranks,
            "intermediate_size": 256 * ranks,
            "num_hidden_layers": 256,
            "num_attention_heads": ranks,
            "num_key_value_heads": ranks,
            "head_dim": 128,
            "max_position_embeddings": CONTEXT,
        }
    )
