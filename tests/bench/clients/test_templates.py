from pathlib import Path

from bench.clients.surroundings import TEMPLATES, with_template
from ringkv.text.answers.spans import THINK
from ringkv.text.answers.tools import LLAMA_3, format_of
from ringkv.text.chat_template import ChatTemplate

QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}


def test_llama_3s_template_describes_and_renders_its_calls() -> None:
    template = _template("llama_3")
    assert format_of(template.source) is LLAMA_3
    turns = [QUESTION, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "Sunny."}]
    text = template.render(turns, tools=[{"type": "function", "function": {"name": "weather"}}])
    assert '{"name": "weather", "parameters": {"city": "Paris"}}' in text
    assert text.count('"name": "weather"') == 2  # described, and called
    assert "Sunny." in text


def test_the_thinking_template_opens_a_reasoning_block() -> None:
    assert _template("thinking").render([QUESTION]).endswith(f"{THINK}\n")


def test_a_model_under_another_template_has_the_same_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("its own")
    with with_template(tmp_path, "thinking") as folder:
        assert folder.name == "thinking"
        assert (folder / "config.json").samefile(tmp_path / "config.json")
        assert (folder / "chat_template.jinja").read_text() == (TEMPLATES / "thinking.jinja").read_text()
    assert not folder.exists()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["chat_template.jinja", "config.json"]
    assert (tmp_path / "chat_template.jinja").read_text() == "its own"


def _template(name: str) -> ChatTemplate:
    return ChatTemplate({"default": (TEMPLATES / f"{name}.jinja").read_text()}, {})
