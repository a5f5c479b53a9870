"""/docs is complete without a network."""

import re
from html.parser import HTMLParser

from tests.server.conftest import Served


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_loads_and_runs_nothing(served: Served) -> None:
    answer = served.http.get("/docs")
    page = Page(answer.text)
    assert page.open == []
    assert {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object"} == set()
    assert [more["href"] for tag, more in page.tags if tag == "a"] == ["/openapi.json"]
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["content-type"].startswith("text/html")


def test_the_page_has_every_operation_and_every_field_of_the_schema(served: Served) -> None:
    schema, text = served.http.get("/openapi.json").json(), served.http.get("/docs").text
    shown = set(re.findall(r"<code>([^<]+)</code>", text))
    operations = {f"{method.upper()} {path}" for path, methods in schema["paths"].items() for method in methods}
    fields = {
        name for body in ("ChatBody", "CompletionBody") for name in schema["components"]["schemas"][body]["properties"]
    }
    assert operations | fields <= shown
    assert "kv_budget" in fields


def test_every_operation_has_a_title_of_several_words(served: Served) -> None:
    text = served.http.get("/docs").text
    titles = {operation: title for title, operation in re.findall(r"<summary>([^<]*) <code>([^<]+)</code>", text)}
    assert titles["POST /v1/chat/completions"] == "Answer a chat"
    assert [operation for operation, title in titles.items() if len(title.split()) < 2] == []
