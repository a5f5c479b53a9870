"""A tiny Llama and its answers in vLLM, which tests compare with `reference`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory

BUDGET, COUNT, LONGEST, VOCABULARY = 128, 80, 1024, 199
PROMPTS = (1, 40, 95, 96, 97, 127, 128, 129, 160, 161, 300, 520, 700)
SETTINGS = {"kv_budget": BUDGET, "kv_recent": 32, "kv_window": 16, "allow_full": True}


def greedy(**settings: Any) -> SamplingParams:
    shape = {"temperature": 0, "max_tokens": COUNT, "ignore_eos": True, "detokenize": False}
    return SamplingParams(**shape, extra_args=settings)


GREEDY = greedy()


def save(made: Path) -> Path:
    """Save a random model whose tokens are bytes, those of ASCII among them."""
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=LONGEST,
    )
    model = transformers.LlamaForCausalLM(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(made)
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())[: VOCABULARY - 1]
    vocabulary = {symbol: token for token, symbol in enumerate(["</s>", *symbols])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(made)
    return made


def prompts() -> list[list[int]]:
    random = Random(5)
    stem = random.choices(range(3, VOCABULARY), k=700)
    return [stem[:n] if n % 2 else random.choices(range(3, VOCABULARY), k=n) for n in PROMPTS]


@contextmanager
def started(folder: Path, settings: Any = SETTINGS, **changes: Any) -> Iterator[LLM]:
    ours = {
        "scheduler_cls": "ringkv_vllm.scheduler.SnapStreamScheduler",
        "worker_cls": "ringkv_vllm.worker.SnapStreamWorker",
        "additional_config": {"ringkv": settings},
        "logits_processors": ["ringkv_vllm.requests:RequestSettings"],
    }
    usual = {"dtype": "float32", "enforce_eager": True, "block_size": 32, "max_num_batched_tokens": 256}
    usual |= {"skip_tokenizer_init": True, "max_model_len": LONGEST, "max_num_seqs": 4}
    usual |= {"kv_cache_memory_bytes": 64 << 20}
    llm = LLM(str(folder), **(usual | (ours if settings else {}) | changes))
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        cleanup_dist_env_and_memory()


def answers(llm: LLM, params: Any = GREEDY, **more: Any) -> list[list[int]]:
    given = [{"prompt_token_ids": prompt} for prompt in prompts()]
    return [list(out.outputs[0].token_ids) for out in llm.generate(given, params, use_tqdm=False, **more)]
