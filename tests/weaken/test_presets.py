from __future__ import annotations

import pytest

from consilia.declare import Supervision
from consilia.weaken import PRESETS, fedia_lung, fedia_ms


@pytest.mark.parametrize(
    ("grid", "m", "tenths"),
    [
        (fedia_ms, 0, (4, 6, 8, 10)),
        (fedia_ms, 1, (3, 5, 7, 9)),
        (fedia_ms, 2, (2, 4, 6, 8)),
        (fedia_ms, 3, (1, 3, 5, 7)),
        (fedia_lung, 0, (7, 8, 9, 10)),
        (fedia_lung, 1, (4, 5, 6, 7)),
        (fedia_lung, 2, (1, 2, 3, 4)),
    ],
)
def test_the_completeness_grids_of_fedia(grid, m, tenths):
    assert grid(m) == tuple(t / 10 for t in tenths)


def test_presets_hold_one_recipe_per_site():
    assert [r.completeness for r in PRESETS["fedia-ms-m2"]] == [0.2, 0.4, 0.6, 0.8]
    assert [r.form for r in PRESETS["fedlppa-octa"]] == [
        Supervision.SCRIBBLE,
        Supervision.POINT,
        Supervision.BLOCK,
        Supervision.BOX,
        Supervision.SCRIBBLE,
    ]
    assert PRESETS["fedlppa-octa"][4].style == "noisy"
    assert PRESETS["fedmix-box"][0].margin == (1, 10)
    assert PRESETS["fedpsl-a"][3].annotates == ("nodule", "consolidation", "pneumothorax")
    assert PRESETS["fedlppa-fundus"][2].convert == "scribble"
