"""FedAdaptAgg's shares with other settings than the paper's; test_averaging.py has its runs."""

import pytest
import torch

from consilia.methods import make_method
from consilia.methods.averaging import Up


@pytest.mark.parametrize(("lam", "beta"), [(10.0, 1.5), (2.0, 3.0), (0.5, 1.0)])
def test_images_and_losses_are_weighed_as_its_settings_say(lam, beta):
    images, losses = {"a": 10, "b": 30, "c": 60}, {"a": 0.8, "b": 0.5, "c": 0.2}
    ups = {s: Up({"w": torch.zeros(1)}, images[s], losses[s]) for s in images}
    found = make_method("fedadaptagg", {"lam": lam, "beta": beta}).image_shares(ups)
    c = {s: images[s] / 100 for s in images}
    d = {s: losses[s] ** beta / sum(x**beta for x in losses.values()) for s in images}
    expected = {s: (c[s] + lam * d[s]) / (1 + lam) for s in images}
    assert {s: part / 100 for s, part in found.items()} == pytest.approx(expected)
