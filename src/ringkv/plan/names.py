"""names: the common name of a model, from its hub id or from the name of a GGUF file."""

import re

ENDINGS = re.compile(
    r"""[-.]gguf$
    | -\d{5}-of-\d{5}$
    | [-._](?:(?:ud|i1)[-_])?(?:i?q\d\w*|tq\d\w*|mxfp4\w*|bf16|fp?16|fp?32)$""",
    re.VERBOSE,
)
"""Endings in lower case: of a file or repository of GGUFs, of a part, and of a type of its tensors."""


def plain_name(name: str) -> str:
    """Return a name in lower case without organisation, folder, `.gguf`, part number and tensor type.

    `Qwen/Qwen3-8B`, `Qwen3-8B-GGUF` and `models/Qwen3-8B-Q4_K_M.gguf` are `qwen3-8b`.
    """
    found = name.lower().rpartition("/")[2]
    while (shorter := ENDINGS.sub("", found)) != found:
        found = shorter
    return found
