"""RequestSettings: checks what a request's `vllm_xargs` set, before it reaches the engine.

vLLM asks each logits processor whether it accepts a request, and answers 400 if not. This one changes no logits.
`ringkv-vllm serve` tells it the server's settings by a variable. Without that, a budget over the server's is lowered.
"""

import json
import os
from typing import Any

from vllm.v1.sample.logits_processor import LogitsProcessor

from ringkv.base.errors import InvalidRequest
from ringkv_vllm.cli import ENVIRONMENT
from ringkv_vllm.settings import KEY, of_any_server, read


class RequestSettings(LogitsProcessor):
    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise ValueError, as vLLM wants it, for settings that the server does not take."""
        given = os.environ.get(ENVIRONMENT)
        settings = read({KEY: json.loads(given)}) if given else None
        try:
            (settings.of_request if settings else of_any_server)(sampling_params.extra_args)
        except InvalidRequest as error:
            raise ValueError(str(error)) from error

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        del vllm_config, device, is_pin_memory

    def apply(self, logits: Any) -> Any:
        return logits

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: Any) -> None:
        """Do nothing: it has no state."""
