"""Fields of OpenAI's API and its common extensions that would change the answer and that ringkv does not implement.

Silence would be a wrong answer, so each is refused by name unless it holds a value that asks for nothing.
"""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ringkv.base.errors import Unsupported
from ringkv.server.schemas import GenerationBody, Turn

# Field -> the values, beside null, that ask for nothing.
HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "ebnf": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "modalities": (["text"],),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "regex": (),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "suffix": ("",),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "web_search_options": (),
}
OF_COMPLETIONS: Mapping[str, tuple[Any, ...]] = {"best_of": (1,), "echo": (False,)}  # which other endpoints have not
OURS = "kv_"  # of the cache: one that is unknown is misspelt, or another server's
IN_A_TURN = ("audio", "function_call")


def refuse_unsupported(body: GenerationBody, more: Mapping[str, tuple[Any, ...]] = MappingProxyType({})) -> None:
    """Raise `Unsupported`, naming the first field that asks for something ringkv does not do.

    `more`: fields of one endpoint alone, with the values that ask for nothing.
    """
    sent = body.model_extra or {}
    strange = next((name for name, value in sent.items() if name.startswith(OURS) and value is not None), None)
    if strange is not None:
        known = ", ".join(name for name in type(body).model_fields if name.startswith(OURS))
        raise Unsupported(f"{strange} is no field; those of the cache are {known}", strange)
    for field, harmless in {**HARMLESS, **more}.items():
        value = sent.get(field)
        if value is not None and value not in harmless:
            but = f", except as {' or '.join(map(json.dumps, harmless))}" if harmless else ""
            raise Unsupported(f"{field} is not supported{but}; leave it out", field)


def refuse_unsupported_turns(messages: Sequence[Turn]) -> None:
    for turn in messages:
        for field in IN_A_TURN:
            if turn.get(field):
                raise Unsupported(f"{field} in a message is not supported; send its text as content", "messages")
