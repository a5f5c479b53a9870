"""Flags of vLLM and llama.cpp, and of other commands of ringkv, with what to give instead."""

import re
from collections.abc import Collection, Mapping

HINTS: Mapping[str, str] = {
    "--tokens COUNT is the longest prompt plus output": "--max-model-len --ctx-size -c",
    "--max-prompt TOKENS is the longest prompt": "--max-model-len --ctx-size -c",
    "--max-tokens N is the longest output": "--n-predict -n",
    "--slots N is the number of concurrent requests": "--max-num-seqs --parallel -np",
    "--attention-parallel slots divides latent attention by requests; start a server for each replica": (
        "--data-parallel-size -dp"
    ),
    "--memory BYTES shows how many slots fit": "--slots --max-num-seqs --parallel -np",
    "--slots and --kv-budget set the size of the cache, not a share of memory": "--gpu-memory-utilization",
    "--memory BYTES is the memory of each rank": "--gpu-memory-utilization",
    "--kv-format int8 or int4 stores slots in fewer bits": ("--kv-cache-dtype --cache-type-k -ctk --cache-type-v -ctv"),
    "--weights int8 or int4 quantises weights; without it AWQ and GPTQ checkpoints become bf16": ("--quantization -q"),
    "the prefix cache is on, and --prefix-store BYTES is its size": "--enable-prefix-caching --cache-reuse",
    "--prefix-store 0 disables the prefix cache": "--no-enable-prefix-caching",
    "--max-step MS bounds the time of a pass, and so its tokens": (
        "--max-num-batched-tokens --enable-chunked-prefill --batch-size -b --ubatch-size -ub"
    ),
    "--speculative-config JSON has the draft model; --speculate N drafts without one": (
        "--num-speculative-tokens --model-draft --spec-draft-model"
    ),
    "--graphs off runs without graphs": "--enforce-eager",
    "--device cuda:0 puts all layers on a GPU": "--n-gpu-layers --gpu-layers -ngl",
    "--threads N is the number of compute threads": "-t",
    "--tensor-parallel N is the number of ranks": "-tp --tensor-split -ts",
    "--tensor-parallel N divides each layer; layers are not divided among ranks": "--pipeline-parallel-size -pp",
    "--expert-parallel gives each rank whole experts": "--enable-expert-parallel",
    "--tensor-parallel N is the number of ranks on all machines": "--nnodes --node-rank",
    "--tensor-parallel N also shows ranks with whole experts": "--expert-parallel --enable-expert-parallel",
    "--role prefill and --role decode separate prefill from decode": "--kv-transfer-config",
    "--model NAME takes a hub id too": "--hf-repo -hf",
    "--served-model-name NAME is the name in the API": "--alias -a",
    "--api-keys FILE or the variable RINGKV_API_KEY has the keys": "--api-key",
    "--allow-origin URL is repeatable": "--allowed-origins",
    "--tls-cert FILE is the certificate": "--ssl-certfile --ssl-cert-file",
    "--tls-key FILE is its key": "--ssl-keyfile --ssl-key-file",
    "--no-request-log logs no requests": "--disable-log-requests",
    "no code of a model is run; docs/models.md lists the architectures": "--trust-remote-code",
}
"""Foreign flags by hint. A hint is for the commands that have all flags that it names; the first one is shown."""


def hint(flag: str, known: Collection[str]) -> str | None:
    """Return what to give instead of a flag that is not `known`; None if there is nothing."""
    return next((text for text, flags in HINTS.items() if flag in flags.split() and flags_in(text) <= set(known)), None)


def flags_in(text: str) -> set[str]:
    """Return the flags that a text names."""
    return set(re.findall(r"--[a-z-]+", text))
