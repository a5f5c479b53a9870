"""The report of a folder of answers: its text, and what a browser shows of it."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from ringkv.base.palette import ALL, NONE, OUTCOMES, PARTS, POLICIES, SURFACE
from ringkv.evaluation import journal, kept
from ringkv.evaluation.bootstrap import Interval
from ringkv.evaluation.journal import Journal, Record
from ringkv.evaluation.kept import Kept, Landmarks
from ringkv.evaluation.outcome import LEGEND
from ringkv.evaluation.report.page import failures, write
from ringkv.evaluation.report.rows import row
from ringkv.evaluation.report.score_chart import score_chart
from ringkv.evaluation.summary import task_scores
from ringkv.evaluation.verdict import Comparison, Verdict

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
CELLS = {"full": 1.0, "streaming 4x": 0.1, "snapstream 4x": 0.8, "snapstream 2x": 0.9}
SCHEMES = {"dark": 0, "light": 1}  # Chromium's numbers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("answers")
    answers = Journal(to, {"model": "toy<script>", "weights": "bf16", "seed": 0})
    answers.begin({"machine": "a machine", "version": "1", "entry_bytes": 1000})
    for cell, score in CELLS.items():
        for place in range(20):
            right = float(place < 20 * score)
            facts = {"length": 4096, "depth": place / 19}
            kept_tokens = 4000 if cell == "full" else 2000 if "2x" in cell else 1000
            held = {"prompt_tokens": 4000, "kept": kept_tokens, "entries": kept_tokens}
            answers.add(Record("niah_single_2", "inside", f"4096/{place}", cell, right, facts=facts, **held))
            answers.add(Record("vt", "inside", f"4096/{place}", cell, 1.0, facts={"length": 4096}, **held))
            logprobs = tuple(np.linspace(-2, -3 + score, 32))
            answers.add(
                Record("wikitext", "after", f"{place}", cell, float(np.mean(logprobs)), logprobs=logprobs, **held)
            )
        for place in range(3):  # too few
            answers.add(Record("gsm8k", "inside", f"{place}", cell, float(place == 0 or cell == "full"), **held))
    answers.add(Record("vt", "inside", "4096/0", "snapkv 99x", None, error="too small & refused"))
    marks = Landmarks(4000, (0.25,), 0.9)
    kept.write(to, [Kept("snapstream 4x", np.tile(np.linspace(0, 1, 200), (12, 1)), 3)], marks)
    return to


def test_losses_are_distinguished_from_noise_and_from_too_few_prompts(folder: Path) -> None:
    page = write(folder).read_text()
    assert '<td class="worse">-90.0 [-100.0, -75.0]</td>' in page
    assert '<td class="noise">+0.0 [+0.0, +0.0]</td>' in page
    assert '<td class="few">-66.7, too few prompts</td>' in page
    assert "ruler, mean of 2 tasks, 4,096" in page
    assert LEGEND in page


def test_the_verdict_comes_first_and_then_a_line_for_each_cell_with_the_full_cache(folder: Path) -> None:
    page = write(folder).read_text()
    headline, full = page.index("At 2x, snapstream keeps "), page.index("The full cache scores 100.0% over 43 prompts.")
    lines = [page.index(f"<b>{cell}</b>") for cell in ("snapstream 2x", "snapstream 4x", "streaming 4x")]
    rest = [page.index(text) for text in ('class="chart wide"', 'class="needles"', 'class="strips"', "Every task")]
    places = [headline, full, *lines, *rest]
    assert places == sorted(places)


def test_text_of_answers_is_escaped_and_failures_are_at_the_top(folder: Path) -> None:
    page = write(folder).read_text()
    assert "toy&lt;script&gt;: what compression costs" in page
    assert page.index("<b>snapkv 99x</b>, 1: too small &amp; refused") < page.index("At 2x, snapstream")
    assert "<script" not in page


def test_failures_that_differ_in_numbers_are_one() -> None:
    records = [Record("vt", "inside", f"{n}", "snapkv 4x", None, error=f"full after {n} of 1,{n}00") for n in (2, 3, 4)]
    other = Record("vt", "inside", "5", "snapkv 4x", None, error="another reason")
    assert failures([*records, other]) == [
        ("snapkv 4x", "another reason", 1),
        ("snapkv 4x", "full after 2 of 1,200", 3),
    ]


def test_the_chart_is_against_bytes_and_against_shares_if_older_answers_do_not_say(
    folder: Path, tmp_path: Path
) -> None:
    assert "bytes held per request" in write(folder).read_text()
    assert "full cache: 100, 4 MB" in write(folder).read_text()
    lines = (folder / journal.NAME).read_text()
    (tmp_path / journal.NAME).write_text(re.sub(r'"entries": \d+, ', "", lines.replace(', "entry_bytes": 1000', "")))
    older = write(tmp_path).read_text()
    assert "share of the prompt that is held" in older
    assert "bytes held per request" not in older


def test_no_interval_of_scores_ends_above_100_percent() -> None:
    share = Interval(110.0, 50.0, 180.0)  # of a full cache that scores 60%
    verdict = Verdict("streaming 4x", frozenset(("vt",)), 9, 0.25, 0, share, "noise")
    chart = score_chart(Comparison("inside", False, 0.6, 0, 9, (verdict,)), None)
    assert chart is not None
    point = chart.series[0].points[0]
    assert (point.y, point.low, point.high) == pytest.approx((66.0, 30.0, 100.0))


def test_without_a_full_cache_the_report_says_what_is_missing(folder: Path, tmp_path: Path) -> None:
    lines = (folder / journal.NAME).read_text().splitlines(keepends=True)
    (tmp_path / journal.NAME).write_text("".join(line for line in lines if '"cell": "full"' not in line))
    assert "Nothing can be compared: the full cache has no answers." in write(tmp_path).read_text()


def test_a_cell_without_answers_has_no_figures(folder: Path) -> None:
    (failed,) = (row(one) for one in task_scores(list(journal.read(folder / journal.NAME))) if one.cell == "snapkv 99x")
    assert failed.cells[2:] == ("0", "failed", "", "", "", "")


def test_the_same_answers_make_the_same_report(folder: Path) -> None:
    assert write(folder).read_text() == write(folder).read_text()


class Outline(HTMLParser):
    """What a screen reader goes by."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.headings: list[int] = []
        self.unnamed: list[str] = []
        self.unscoped = 0
        self.names: set[str] = set()
        self.pointed: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag in ("svg", "img") and not (given.get("aria-label") or given.get("alt") or given.get("aria-hidden")):
            self.unnamed.append(tag)
        self.unscoped += tag == "th" and "scope" not in given
        self.names |= {given["id"] or ""} if "id" in given else set()
        self.pointed |= {given["aria-labelledby"] or ""} if "aria-labelledby" in given else set()


def test_headings_pictures_and_tables_are_named_for_screen_readers(folder: Path) -> None:
    found = Outline(write(folder).read_text())
    assert found.headings[0] == 1
    assert set(found.headings[1:]) == {2}
    assert (found.unnamed, found.unscoped) == ([], 0)
    assert found.pointed <= found.names


def browse(tmp_path: Path, page: Path, *options: str) -> str:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser is here: none of {', '.join(BROWSERS)}")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={tmp_path}", *options, page.as_uri()]
    return subprocess.run(command, check=True, capture_output=True, timeout=120, text=True).stdout


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_browser_shows_the_plots_in_the_readers_colours(scheme: str, folder: Path, tmp_path: Path) -> None:
    from PIL import Image

    picture = tmp_path / "page.png"
    colours = f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"
    browse(tmp_path, write(folder), colours, "--window-size=1300,4200", f"--screenshot={picture}")
    image = Image.open(picture).convert("RGB")
    counts = {colour: count for count, colour in image.getcolors(image.width * image.height) or []}

    def shown(colour: str) -> int:
        return counts.get(tuple(bytes.fromhex(colour[1:])), 0)

    assert max(counts, key=counts.__getitem__) == tuple(bytes.fromhex(getattr(SURFACE["background"], scheme)[1:]))
    assert all(shown(getattr(colour, scheme)) > 50 for colour in POLICIES[:2])  # each policy's marks
    assert shown(getattr(OUTCOMES["worse"], scheme)) > 50
    assert min(shown(ALL), shown(NONE)) > 1000  # the needles
    assert shown(getattr(PARTS["selected"], scheme)) > 500  # what was kept by all heads


def test_a_phone_needs_no_sideways_scrolling(folder: Path, tmp_path: Path) -> None:
    measured = tmp_path / "page.html"
    frame = "<iframe id=phone width=390 height=800 srcdoc='{}'></iframe>"
    script = (
        "<script>onload=()=>{let p=document.getElementById('phone').contentDocument;"
        "document.title=p.documentElement.scrollWidth+' '+getComputedStyle(p.querySelector('.wide')).display}</script>"
    )
    page = write(folder).read_text().replace("&", "&amp;").replace("'", "&#39;")
    measured.write_text(f"<!doctype html><meta charset=utf-8>{frame.format(page)}{script}")
    dumped = browse(tmp_path, measured, "--dump-dom")
    assert "<title>390 none</title>" in dumped
