"""The report of a folder of answers: its text, and its plots in a browser."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ringkv.evaluation import journal, kept
from ringkv.evaluation.journal import Journal, Record
from ringkv.evaluation.kept import Kept
from ringkv.evaluation.report import plots
from ringkv.evaluation.report.page import row, write
from ringkv.evaluation.summary import task_scores

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
CELLS = {"full": 1.0, "streaming 4x": 0.1, "snapstream 4x": 0.8, "snapstream 2x": 0.9}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("answers")
    answers = Journal(to, {"model": "toy<script>", "weights": "bf16", "seed": 0})
    answers.begin({"machine": "a machine", "version": "1"})
    for cell, score in CELLS.items():
        for place in range(20):
            right = float(place < 20 * score)
            facts = {"length": 4096, "depth": place / 19}
            held = {"prompt_tokens": 4000, "kept": 4000 if cell == "full" else 2000 if "2x" in cell else 1000}
            answers.add(Record("niah_single_2", "inside", f"4096/{place}", cell, right, facts=facts, **held))
            answers.add(Record("vt", "inside", f"4096/{place}", cell, 1.0, facts={"length": 4096}, **held))
            logprobs = tuple(np.linspace(-2, -3 + score, 32))
            answers.add(
                Record("wikitext", "after", f"{place}", cell, float(np.mean(logprobs)), logprobs=logprobs, **held)
            )
    answers.add(Record("vt", "inside", "4096/0", "snapkv 99x", None, error="too small & refused"))
    kept.write(to, [Kept("snapstream 4x", np.tile(np.linspace(0, 1, 200), (12, 1)), 3)])
    return to


def test_losses_are_distinguished_from_noise(folder: Path) -> None:
    page = write(folder).read_text()
    assert '<td class="worse">-90.0 [-100.0, -75.0]</td>' in page
    assert '<td class="noise">+0.0 [+0.0, +0.0]</td>' in page
    assert "ruler, mean of 2 tasks, 4,096" in page


def test_text_of_answers_is_escaped(folder: Path) -> None:
    page = write(folder).read_text()
    assert "toy&lt;script&gt;: what compression costs" in page
    assert "too small &amp; refused" in page
    assert "<script" not in page


def test_a_cell_without_answers_has_no_figures(folder: Path) -> None:
    (failed,) = (row(one) for one in task_scores(list(journal.read(folder / journal.NAME))) if one.cell == "snapkv 99x")
    assert failed.cells[2:] == ("0", "failed", "", "", "", "")


def test_the_same_answers_make_the_same_report(folder: Path) -> None:
    assert write(folder).read_text() == write(folder).read_text()


def test_a_browser_shows_the_plots(folder: Path, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser is here: none of {', '.join(BROWSERS)}")
    from PIL import Image

    picture = tmp_path / "page.png"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1300,6000"]
    command += [f"--user-data-dir={tmp_path}", f"--screenshot={picture}", write(folder).as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    image = Image.open(picture).convert("RGB")
    colours = {colour: count for count, colour in image.getcolors(image.width * image.height) or []}
    lines = [tuple(bytes.fromhex(colour[1:])) for colour in plots.COLOURS[:3]]
    assert all(colours.get(line, 0) > 50 for line in lines)  # each policy's line
    green = sum(count for (r, g, b), count in colours.items() if g > r + 40 and g > b + 40)
    blue = sum(count for (r, g, b), count in colours.items() if b > r + 60)
    assert green > 1000  # the heat maps
    assert blue > 5000  # what was kept
