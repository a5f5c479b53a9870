"""Maps compared with the shares that they show."""

import io
from base64 import b64decode
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from ringkv.evaluation import kept
from ringkv.evaluation.kept import Kept, Landmarks
from ringkv.evaluation.report.kept_map import kept_maps, opacity_uri

RNG = np.random.default_rng(4)
MARKS = Landmarks(1000, (0.25, 0.5), 0.9)


def test_an_image_has_the_shares_as_opacity() -> None:
    from PIL import Image

    shares = RNG.random((6, 40))
    uri = opacity_uri(shares, (1, 2, 3))
    image = np.asarray(Image.open(io.BytesIO(b64decode(uri.removeprefix("data:image/png;base64,")))))
    assert np.abs(image[..., 3] / 255 - shares).max() <= 0.5 / 255 + 1e-9
    assert (image[..., :3] == (1, 2, 3)).all()


def test_a_strip_is_shaded_by_the_share_of_heads_that_kept_each_place(tmp_path: Path) -> None:
    shares = (RNG.random((8, 50)) < np.linspace(0, 1, 50)).astype(float)
    kept.write(tmp_path, [Kept("full", np.ones((8, 50)), 2), Kept("snapstream 4x", shares, 2)], MARKS)
    found = kept_maps(tmp_path)
    assert found is not None
    assert found.landmarks == MARKS
    (strip,) = found.strips
    assert strip.cell == "snapstream 4x"
    shaded = np.zeros(50)
    for path in ElementTree.fromstring(strip.strip).iter("path"):
        for part in path.attrib["d"].split("M")[1:]:
            start, _, rest = part.partition(" 0h")
            shaded[int(start) : int(start) + int(rest.split("v")[0])] = float(path.attrib["fill-opacity"])
    assert shaded == pytest.approx(shares.mean(0), abs=0.05 + 1e-9)


def test_maps_of_older_versions_have_no_landmarks(tmp_path: Path) -> None:
    assert kept_maps(tmp_path) is None
    kept.write(tmp_path, [Kept("snapstream 4x", np.ones((8, 50)), 2)])
    found = kept_maps(tmp_path)
    assert found is not None
    assert found.landmarks == Landmarks()
