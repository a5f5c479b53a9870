"""names: the common name of a model, from its hub id or from the name of a GGUF file."""

import re

ENDINGS = re.compile(
    r"""[-.]gguf$
    | -\d{5}-of-\d{5}$
    | -qat$
    | [-._](?:(?:ud|i1)[-_])?(?:i?q\d\w*|tq\d\w*|mxfp4\w*|bf16|fp?16|fp?32)$""",
    re.VERBOSE,
)
"""Endings in lower case: of a file or repository of GGUFs, of a part, of training for a type, and of a tensor type."""

PUBLISHERS = re.compile("^(?:deepseek-ai|google|ibm-granite|meta-llama|microsoft|mistralai|openai|qwen|zai-org)_")
"""Organisations that some names of files begin with."""


def plain_name(name: str) -> str:
    """Return a name in lower case without organisation, folder, `.gguf`, part number and tensor type.

    `Qwen/Qwen3-8B`, `Qwen3-8B-GGUF` and `models/Qwen3-8B-Q4_K_M.gguf` are `qwen3-8b`.
    """
    found = name.lower().rpartition("/")[2]
    found = PUBLISHERS.sub("", found)
    while (shorter := ENDINGS.sub("", found)) != found:
        found = shorter
    return found
