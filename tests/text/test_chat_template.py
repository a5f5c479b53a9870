import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from ringkv.base.errors import BadWeights, InvalidRequest, Unsupported
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.tokenizer import Tokenizer
from tests.refusals import refusal

CHATML = """\
{% for message in messages %}
    {% if loop.first and message.role != 'system' %}
{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}
    {% endif %}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{% endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' -}}
{% endif %}"""

ALTERNATING = """\
{{- bos_token -}}
{%- for message in messages -%}
  {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
    {{- raise_exception('roles must alternate, and ' + message.role + ' came') -}}
  {%- endif -%}
  {%- if message['role'] == 'user' -%}[Q] {{ message['content'] | trim }} [/Q]{%- else -%}
    {% generation %} {{ message['content'] }}{{ eos_token }}{% endgeneration %}
  {%- endif -%}
{%- endfor -%}"""

TOOLS = """\
{%- macro line(name, value) %}{{ name }}={{ value | tojson }}
{% endmacro -%}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
{%- if message.role == 'tool' %}{% continue %}{% endif %}{% set ns.last = loop.index0 %}
{%- endfor %}
{%- if tools is not none and tools %}{% for tool in tools %}{{ line(tool.function.name, tool) }}{% endfor %}{% endif %}
{%- for message in messages %}
{{ message.role | upper }}{{ '*' if loop.index0 == ns.last }}:
{{ message.content if message.content is string else '-' }}
{%- for call in message.tool_calls or [] %} -> {{ call.function.arguments | tojson(indent=2) }}{% endfor %}
{%- endfor %}
{{ strftime_now('%Y') | length }} {{ documents is none }} {{ bos_token is defined }} {{ unknown is defined }}"""

TEMPLATES = {"chatml": CHATML, "alternating": ALTERNATING, "tools": TOOLS}
TURNS = [
    {"role": "user", "content": " What is <b>5 & 6</b>?\n"},
    {"role": "assistant", "content": "Elf, 十一 😀"},
    {"role": "user", "content": "{{ 7 * 7 }} {% raw %}"},
]
CALLS = [
    {"role": "user", "content": "Weather in Zürich?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "f", "arguments": {"city": "Zürich"}}}],
    },
    {"role": "tool", "content": '{"t": "<5°"}'},
]
TOOL = {"type": "function", "function": {"name": "weather", "description": "is it <cold> & grey in Zürich?"}}


def transformers_renders(tokenizer: Tokenizer, template: Any, messages: Any, **options: Any) -> str:
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer._inner, bos_token="<|begin|>", eos_token="<|end|>")
    return theirs.apply_chat_template(messages, chat_template=template, tokenize=False, **options)


@pytest.fixture
def template_of(model_dir: Callable[..., Path]) -> Callable[[Any], ChatTemplate]:
    def make(template: Any) -> ChatTemplate:
        config = {"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}, "chat_template": template}
        return ChatTemplate.from_directory(model_dir(tokenizer_config=config))

    return make


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("tools", [None, [TOOL, TOOL]])
@pytest.mark.parametrize(
    ("name", "messages"), [("chatml", TURNS), ("alternating", TURNS), ("tools", TURNS), ("tools", CALLS)]
)
def test_a_template_renders_as_in_transformers(
    template_of: Callable[[Any], ChatTemplate],
    byte_level: Tokenizer,
    name: str,
    messages: Any,
    tools: Any,
    prompt: bool,
):
    template = TEMPLATES[name]
    options = {"tools": tools, "add_generation_prompt": prompt}
    expected = transformers_renders(byte_level, template, messages, **options)
    assert template_of(template).render(messages, **options) == expected


@pytest.mark.parametrize("tools", [None, [TOOL]])
@pytest.mark.parametrize("model", ["smollm2_text", "qwen_text"])
def test_the_template_of_a_real_model_renders_as_in_transformers(
    request: pytest.FixtureRequest, byte_level: Tokenizer, model: str, tools: Any
):
    directory = request.getfixturevalue(model)
    source = json.loads((directory / "tokenizer_config.json").read_text())["chat_template"]
    for messages in (TURNS, [{"role": "system", "content": "Rhyme."}, *TURNS]):
        expected = transformers_renders(byte_level, source, messages, tools=tools, add_generation_prompt=True)
        assert ChatTemplate.from_directory(directory).render(messages, tools=tools) == expected


def test_text_parts_read_as_lines_of_one_string(template_of: Callable[[Any], ChatTemplate]):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    template = template_of(CHATML)
    rendered = template.render([{"role": "user", "content": parts}])
    assert rendered == template.render([{"role": "user", "content": "one\ntwo"}])


def test_a_variable_reaches_the_template_by_name(template_of: Callable[[Any], ChatTemplate]):
    template = template_of("{{ messages[0].content }}{{ ' slowly' if enable_thinking else '' }}")
    assert template.render(TURNS[1:2], variables={"enable_thinking": True}) == "Elf, 十一 😀 slowly"


def test_a_template_that_writes_bos_gets_no_second_one(model_dir: Callable[..., Path]):
    config = {
        "bos_token": "<|begin|>",
        "add_bos_token": True,
        "chat_template": "{{ bos_token }}{{ messages[0].content }}",
    }
    directory = model_dir(tokenizer_config=config)
    tokenizer = Tokenizer.from_directory(directory)
    ids = ChatTemplate.from_directory(directory).encode([{"role": "user", "content": "dog"}], tokenizer)
    assert ids == tokenizer.encode("dog")
    assert ids.count(tokenizer.bos_id) == 1


def test_a_jinja_file_wins_over_the_config(model_dir: Callable[..., Path]):
    directory = model_dir(tokenizer_config={"chat_template": "config"})
    (directory / "chat_template.jinja").write_text("file")
    assert ChatTemplate.from_directory(directory).render(TURNS) == "file"


def test_the_tool_template_is_used_if_there_are_tools(template_of: Callable[[Any], ChatTemplate]):
    named = [{"name": "tool_use", "template": "with tools"}, {"name": "default", "template": "plain"}]
    template = template_of(named)
    assert [template.render(TURNS, tools=tools) for tools in (None, [], [TOOL])] == ["plain", "plain", "with tools"]
    assert template.default == "plain"


def test_a_directory_without_a_template_is_refused_with_the_remedy(model_dir: Callable[..., Path]):
    with refusal("messages", r"chat_template\.jinja"):
        ChatTemplate.from_directory(model_dir())


def test_a_template_that_does_not_parse_is_named_with_its_line(template_of: Callable[[Any], ChatTemplate]):
    with pytest.raises(BadWeights, match="line 2"):
        template_of("fine\n{% for %}")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('no system role here') }}", "no system role here"),
        ("{{ messages[9].content + 'x' }}", "no element 9"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ cycler.__init__.__globals__.os.system('true') }}", "unsafe"),
    ],
)
def test_a_template_that_fails_raises_an_error_of_the_request(
    template_of: Callable[[Any], ChatTemplate], source: str, reason: str
):
    with pytest.raises(InvalidRequest, match=reason) as raised:
        template_of(source).render(TURNS)
    assert raised.value.param == "messages"


@pytest.mark.parametrize("message", ["text", {"content": "no role"}, {"role": 5}, {"role": "user", "content": 5}])
def test_a_malformed_message_is_refused_with_its_index(template_of: Callable[[Any], ChatTemplate], message: Any):
    with pytest.raises(InvalidRequest, match="message 1"):
        template_of(CHATML).render([TURNS[0], message])


def test_an_empty_conversation_is_refused(template_of: Callable[[Any], ChatTemplate]):
    with pytest.raises(InvalidRequest, match="no messages"):
        template_of(CHATML).render([])


def test_an_image_part_is_refused_by_name(template_of: Callable[[Any], ChatTemplate]):
    with pytest.raises(Unsupported, match="image_url"):
        template_of(CHATML).render([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])


def test_a_text_part_without_text_is_refused_as_such(template_of: Callable[[Any], ChatTemplate]):
    with refusal("messages[0].content[0]", "text"):
        template_of(CHATML).render([{"role": "user", "content": [{"type": "text"}]}])


@pytest.mark.parametrize("model", ["qwen_text", "smollm2_text"])
def test_system_tokens_are_the_first_of_the_prompt_and_end_with_the_system_message(model: str, request: Any) -> None:
    folder = request.getfixturevalue(model)
    template, tokenizer = ChatTemplate.from_directory(folder), Tokenizer.from_directory(folder)
    messages = [{"role": "system", "content": "Answer in French, whatever comes."}, {"role": "user", "content": "Hi"}]
    count = template.system_tokens(messages, tokenizer)
    first = template.encode(messages, tokenizer)[:count]
    assert tokenizer.decode(first).endswith("Answer in French, whatever comes.")
    assert template.system_tokens(messages[1:], tokenizer) == 0


def test_a_system_message_that_the_template_drops_is_not_found_in_a_user_message(bytewise: Tokenizer) -> None:
    chat = ChatTemplate({"default": "{{ messages[-1].content }}"}, {})
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "You said: Be brief."}]
    assert chat.system_tokens(messages, bytewise) == 0


NOTED = "{{ bos_token }}{% if '/think' in messages[0].content %}Think. {% endif %}" + CHATML


@pytest.mark.parametrize("template", [CHATML, NOTED])
@pytest.mark.parametrize(
    "system", ["a", "system", "user", "<", "\n", "You are helpful.", "  spaced  ", "/think twice", "\U000f0000"]
)
def test_a_system_message_is_found_by_its_position_and_not_by_its_text(
    template: str, system: str, bytewise: Tokenizer
) -> None:
    chat = ChatTemplate({"default": template}, {"bos_token": "<a system of users>"})
    messages = [{"role": "system", "content": system}, {"role": "user", "content": f"{system} Hello"}]
    header, _, _ = chat.render([{"role": "system", "content": f"<HERE>{system}"}, *messages[1:]]).partition("<HERE>")
    spaces = len(system) - len(system.lstrip())
    expected = f"{header}{system[:spaces]}{system.strip()}" if system.strip() else ""
    assert chat.system_tokens(messages, bytewise) == len(bytewise.encode(expected, add_special_tokens=False))
