import math

import pytest

from consilia.ops.ramp import gaussian_ramp


def test_it_grows_from_almost_nothing_to_one():
    assert gaussian_ramp(0, 10) == pytest.approx(math.exp(-5))
    assert gaussian_ramp(5, 10) == pytest.approx(math.exp(-1.25))
    assert gaussian_ramp(10, 10) == gaussian_ramp(99, 10) == 1
    assert gaussian_ramp(0, 0) == 1
    assert gaussian_ramp(-3, 10) == gaussian_ramp(0, 10)
