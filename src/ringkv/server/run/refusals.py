"""Refuses fields of OpenAI's API and its common extensions that ringkv does not implement.

Ignoring them would give a wrong answer. A field is accepted with a value that has no effect.
"""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ringkv.base.errors import Unsupported
from ringkv.server.run.schemas import GenerationBody, SentMessage
from ringkv.text.chat_template import message_param

# Field -> the values, besides null, that have no effect.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "ebnf": (),
    "enable_thinking": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": (),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "modalities": (["text"],),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "reasoning": (),
    "regex": (),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "structural_tag": (),
    "suffix": ("",),
    "thinking": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
OF_COMPLETIONS: Mapping[str, tuple[Any, ...]] = {"best_of": (1,), "echo": (False,)}  # only /v1/completions has them
KV_PREFIX = "kv_"  # an unknown field with this prefix is misspelt, or another server's
UNSUPPORTED_IN_MESSAGES = ("audio", "function_call")
OF_TEMPLATES = ("add_generation_prompt", "continue_final_message", "documents", "chat_template")


def refuse_unsupported(body: GenerationBody, more: Mapping[str, tuple[Any, ...]] = MappingProxyType({})) -> None:
    """Raise Unsupported, naming the first field that ringkv does not implement.

    more: fields that one endpoint refuses in addition, with the values that have no effect.
    """
    extra = body.model_extra or {}
    unknown = next((name for name, value in extra.items() if name.startswith(KV_PREFIX) and value is not None), None)
    if unknown is not None:
        supported = ", ".join(name for name in type(body).model_fields if name.startswith(KV_PREFIX))
        raise Unsupported(f"{unknown} is not a field; the cache's fields are {supported}", unknown)
    for field, no_effect in {**UNSUPPORTED, **more}.items():
        value = extra.get(field)
        if value is not None and value not in no_effect:
            exception = f", except as {' or '.join(map(json.dumps, no_effect))}" if no_effect else ""
            raise Unsupported(f"{field} is not supported{exception}; leave it out", field)


def refuse_unsupported_messages(messages: Sequence[SentMessage]) -> None:
    for number, message in enumerate(messages):
        for field in UNSUPPORTED_IN_MESSAGES:
            if message.get(field):
                text = f"{field} in a message is not supported; send its text as content"
                raise Unsupported(text, message_param(number, field))


def refuse_template_variables(variables: Mapping[str, Any]) -> None:
    """Refuse in `chat_template_kwargs` what is refused as a field, because a template takes both alike."""
    for field in OF_TEMPLATES:
        value = variables.get(field)
        if value is not None and value not in UNSUPPORTED[field]:
            raise Unsupported(f"{field} in chat_template_kwargs is not supported; leave it out", "chat_template_kwargs")
