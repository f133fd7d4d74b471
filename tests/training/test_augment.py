"""Augmentation moves images and labels together, exactly, and outside pixels are not known."""

import math
from dataclasses import replace

import pytest
import torch
from tests.methods.support import final_state

from consilia.engines.inprocess import make_bench
from consilia.engines.plan import make_plan
from consilia.errors import UsageError
from consilia.methods import make_method
from consilia.testing import run_toy, toy_spec
from consilia.training.augment import POLICIES, Move, Policy, apply, draw, policy_of
from consilia.training.batch import Batch
from consilia.training.settings import Training
from consilia.training.tones import TONES


def batch(count=2, size=8, known=None, constraint=False):
    g = torch.Generator().manual_seed(3)
    target = torch.randint(0, 3, (count, size, size), generator=g)
    return Batch(
        target[:, None].float() / 2,
        target,
        None,
        known,
        (target[:, None] > 0).repeat(1, 2, 1, 1) if constraint else None,
        torch.arange(count),
        2,
    )


def flags(*values):
    return torch.tensor(values, dtype=torch.bool)


def test_flips_move_each_image_by_its_own_draw():
    before = batch(constraint=True, known=torch.rand(2, 8, 8) > 0.5)
    after = apply(Move(flags(True, False), flags(False, True)), before)
    for part in ("image", "target", "known_pixels", "constraint"):
        a, b = getattr(before, part), getattr(after, part)
        assert torch.equal(b[0], a[0].flip(-1))
        assert torch.equal(b[1], a[1].flip(-2))


def test_quarter_turns():
    before = batch()
    after = apply(Move(flags(False, False), flags(False, False), torch.tensor([1, 3])), before)
    assert torch.equal(after.target[0], torch.rot90(before.target[0], 1))
    assert torch.equal(after.target[1], torch.rot90(before.target[1], 3))


def test_image_and_label_stay_together_under_rotation_and_outside_is_unknown():
    before = batch(count=4, size=32)
    blocky = before.target // 1
    move = draw(Policy(rotate=45), 4, torch.Generator().manual_seed(0))
    after = apply(move, before)
    assert after.known_pixels is not None
    assert not after.known_pixels.all()
    assert after.known_pixels.float().mean() > 0.6
    assert set(after.target.unique().tolist()) <= {0, 1, 2}
    assert torch.equal(blocky, before.target)


def test_no_rotation_is_the_identity():
    before = batch(size=16)
    affine = torch.tensor([[[1.0, 0, 0], [0, 1, 0]]]).repeat(2, 1, 1)
    after = apply(Move(flags(False, False), flags(False, False), None, affine), before)
    assert torch.allclose(after.image, before.image, atol=1e-6)
    assert torch.equal(after.target, before.target)
    assert after.known_pixels.all()


@pytest.mark.parametrize("name", POLICIES)
def test_draws_are_replayable(name):
    one, two = (draw(POLICIES[name], 5, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(one.hflip, two.hflip)
    assert one.affine is None or torch.equal(one.affine, two.affine)


def test_tags_do_not_move():
    tags = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    before = Batch(torch.rand(2, 1, 8, 8), tags, None, None, None, torch.arange(2), 2)
    after = apply(draw(POLICIES["mild"], 2, torch.Generator().manual_seed(0)), before)
    assert torch.equal(after.target, tags)
    assert not torch.equal(after.image, before.image)


def test_flip_rates():
    move = draw(POLICIES["flips"], 4000, torch.Generator().manual_seed(0))
    assert move.hflip.float().mean().item() == pytest.approx(0.5, abs=0.03)
    assert not draw(POLICIES["none"], 100, torch.Generator().manual_seed(0)).hflip.any()


def test_outside_a_gray_image_is_the_policys_border_and_outside_a_color_one_black():
    def turned(channels, border):
        image = torch.full((1, channels, 9, 9), 0.3)
        batch = Batch(
            image, torch.zeros(1, 9, 9).long(), None, None, None, torch.zeros(1).long(), 1
        )
        quarter = math.radians(45)
        cos, sin = math.cos(quarter), math.sin(quarter)
        affine = torch.tensor([[[cos, -sin, 0.0], [sin, cos, 0.0]]])
        still = torch.zeros(1, dtype=torch.bool)
        return apply(Move(still, still, None, affine, border), batch).image[0, :, 0, 0]

    light = torch.tensor([0.8])
    assert turned(1, light).tolist() == pytest.approx([0.8])
    assert turned(1, None).tolist() == [0]
    assert turned(3, light).tolist() == [0, 0, 0]


# --- crops ---


def test_a_crop_cuts_the_same_square_of_everything():
    before = batch(count=3, size=8, known=torch.rand(3, 8, 8) > 0.5, constraint=True)
    corner = torch.tensor([[0.0, 0.0], [0.999, 0.999], [0.25, 0.5]])
    after = apply(Move(flags(0, 0, 0), flags(0, 0, 0), corner=corner, side=5), before)
    for i, (top, left) in enumerate([(0, 0), (3, 3), (1, 2)]):
        for part in ("image", "target", "known_pixels", "constraint"):
            cut = getattr(before, part)[i][..., top : top + 5, left : left + 5]
            assert torch.equal(getattr(after, part)[i], cut), part


def test_a_crop_lies_anywhere_in_the_image_and_may_be_all_of_it():
    policy = policy_of(Training(augment="none", crop=7))
    move = draw(policy, 500, torch.Generator().manual_seed(0))
    places = torch.arange(64.0).reshape(1, 1, 8, 8).expand(500, -1, -1, -1)
    tags = Batch(places, torch.zeros(500, 1), None, None, None, torch.arange(500), 1)
    assert set(apply(move, tags).image[:, 0, 0, 0].tolist()) == {0, 1, 8, 9}
    assert torch.equal(apply(replace(move, side=8), tags).image, places)


@pytest.mark.parametrize("name", POLICIES)
def test_crops_and_intensities_are_drawn_after_all_that_was_drawn_before(name):
    plain = POLICIES[name]
    more = replace(plain, crop=5, tones=TONES["fedia"])
    one, two = (draw(p, 6, torch.Generator().manual_seed(1)).parts() for p in (plain, more))
    assert {*two} - {*one} == {"corner", "tones"}
    assert all(torch.equal(part, two[key]) for key, part in one.items())


def test_flips_alone_draw_three_numbers_an_image():
    drawn, counted = torch.Generator().manual_seed(2), torch.Generator().manual_seed(2)
    draw(policy_of(Training(augment="flips")), 4, drawn)
    torch.rand(3, 4, generator=counted)
    assert torch.equal(drawn.get_state(), counted.get_state())


@pytest.mark.parametrize("method", ["fedavg", "fedmix", "elr", "adele", "rmd", "fedcorr"])
def test_methods_train_on_crops_with_other_intensities(method, tmp_path):
    form = "box" if method == "fedmix" else "mask"

    def trained(**training):
        spec = toy_spec(
            labels=["round"],
            sites=[{"name": "anna"}, {"name": "bo", "supervision": form}],
            rounds=2,
            method={"name": method},
            training={"augment": "flips", **training},
        )
        found = run_toy(spec, tmp_path / "-".join(training))
        assert math.isfinite(found["mean"]["dice"])
        state = final_state(tmp_path / "-".join(training))
        return {name: value for name, value in state.items() if name.startswith("server")}

    whole, cropped = trained(batch=4), trained(crop=11)
    other = trained(crop=11, intensity="fedia")
    ignored = method == "elr"  # its targets belong to pixels of whole images
    assert same(whole, cropped) == ignored
    assert not same(cropped, other)


def same(one, other):
    assert one.keys() == other.keys() != set()
    return all(torch.equal(one[name], other[name]) for name in one)


def test_adele_looks_at_small_crops_in_small(tmp_path):
    method = {"name": "adele"}
    spec = toy_spec(labels=["round"], rounds=1, method=method, learner={"network": "unet-small"})
    assert math.isfinite(run_toy(spec, tmp_path)["mean"]["dice"])  # 0.7 of 16 pixels are too few


def test_crops_that_fit_no_image_or_no_network_are_refused():
    with pytest.raises(UsageError, match=r"training.crop is 17, but `image.size` is 16 x 16; crop"):
        toy_spec(training={"crop": 17})
    small = toy_spec(learner={"network": "unet-small"}, training={"crop": 15})
    for make in (lambda s: make_bench(s, make_method("fedavg"), s.federation), make_plan):
        with pytest.raises(
            UsageError, match=r"takes images from 16 pixels a side, but training.crop is 15"
        ):
            make(small)
    prompted = toy_spec(method={"name": "fedlppa"}, training={"crop": 12})
    with pytest.raises(
        UsageError, match=r"prompts as large as images: training.crop is 12, set it to 0"
    ):
        make_plan(prompted)
    without = {"name": "fedlppa", "settings": {"tdf": False, "pd": False}}
    make_plan(toy_spec(method=without, training={"crop": 12}))
