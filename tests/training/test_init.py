"""Start weights from a file: what must fit, and what is drawn."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.methods.support import assert_same_state, server_weights

from consilia.errors import UsageError
from consilia.networks.classifiers import DenseNet121
from consilia.testing import run_toy, toy_spec, with_changes
from consilia.training.learner import PlainLearner
from consilia.training.site import Workbench

CPU = torch.device("cpu")


def bench_of(spec):
    learner = PlainLearner.of(spec.learner, spec.federation)
    return Workbench(learner, spec.federation, CPU, spec.seed)


def large_spec(channels=1, network="densenet121"):
    """Return a toy run of a network on images that are large enough for it."""
    spec = toy_spec("multi-label", learner={"network": network})
    return with_changes(
        spec, "federation.image.size=[64, 64]", f"federation.image.channels={channels}"
    )


def other_start(spec):
    """Return weights that the spec's own seed does not draw."""
    return bench_of(spec.model_copy(update={"seed": 7})).start()


def without_head(weights):
    return {name: value for name, value in weights.items() if not name.startswith("head.")}


@pytest.mark.parametrize("task", ["segmentation", "multi-label"])
def test_a_whole_network_is_taken_as_it_is(task, tmp_path):
    spec = toy_spec(task)
    save_file(other_start(spec), tmp_path / "start.safetensors")
    assert_same_state(bench_of(spec).start(init=tmp_path / "start.safetensors"), other_start(spec))


@pytest.mark.parametrize("task", ["segmentation", "multi-label"])
@pytest.mark.parametrize("head", ["none", "other labels"])
def test_a_head_that_is_missing_or_for_other_labels_is_drawn(head, task, tmp_path):
    spec = toy_spec(task)
    other = other_start(toy_spec(task, labels=["a", "b", "c", "d"]))
    held = without_head(other_start(spec)) if head == "none" else other
    save_file(held, tmp_path / "start.safetensors")
    found, drawn = bench_of(spec).start(init=tmp_path / "start.safetensors"), bench_of(spec).start()
    assert_same_state(without_head(found), without_head(held))
    heads = [name for name in found if name.startswith("head.")]
    assert heads
    assert_same_state({n: found[n] for n in heads}, {n: drawn[n] for n in heads})


def test_half_a_head_is_no_head(tmp_path):
    spec = toy_spec("multi-label")
    held = other_start(spec)
    del held["head.bias"]
    save_file(held, tmp_path / "start.safetensors")
    found, drawn = bench_of(spec).start(init=tmp_path / "start.safetensors"), bench_of(spec).start()
    assert torch.equal(found["head.weight"], drawn["head.weight"])
    assert not torch.equal(found["head.weight"], held["head.weight"])


@pytest.mark.parametrize("fault", ["missing", "shape", "extra"])
def test_all_but_the_head_must_fit(fault, tmp_path):
    spec = toy_spec("multi-label")
    held = without_head(other_start(spec))
    if fault == "missing":
        del held["body.4.weight"]
    elif fault == "shape":
        held["body.4.weight"] = torch.zeros(2, 2)
    else:
        held["body.4.more"] = torch.zeros(2)
    save_file(held, tmp_path / "start.safetensors")
    with pytest.raises(UsageError, match=r"does not fit the network: of 'body.4.(weight|more)'"):
        bench_of(spec).start(init=tmp_path / "start.safetensors")


def test_a_densenet_body_starts_a_network_with_other_labels(tmp_path):
    spec = large_spec()
    torch.manual_seed(3)
    body = without_head(DenseNet121(1, 14).state_dict())
    save_file(body, tmp_path / "body.safetensors")
    found = bench_of(spec).start(init=tmp_path / "body.safetensors")
    assert_same_state(without_head(found), body)
    assert found["head.weight"].shape == (2, 1024)
    assert torch.equal(found["head.bias"], torch.zeros(2))


@pytest.mark.parametrize("channels", [1, 3])
def test_the_conversion_that_the_docs_show_works(channels, tmp_path, monkeypatch):
    """Files of ImageNet weights have a first layer for color images; gray ones take it summed."""
    page = (Path(__file__).parents[2] / "docs/methods/fedlsm.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    torch.manual_seed(3)
    ours = without_head(DenseNet121(3, 1).state_dict())
    plain = {n.removeprefix("body.").replace(".layers.", "."): t for n, t in ours.items()}
    old = {  # as the oldest files have it: norm.1, and no count of batches
        re.sub(r"(denselayer\d+\.)(norm|conv)([12])\.", r"\1\2.\3.", name): tensor
        for name, tensor in plain.items()
        if not name.endswith("num_batches_tracked")
    }
    monkeypatch.chdir(tmp_path)
    for theirs in (plain, old):
        save_file({**theirs, "classifier.weight": torch.zeros(1)}, "densenet121.safetensors")
        exec(code, {})
        spec = large_spec(channels)
        found = bench_of(spec).start(init=tmp_path / "body.safetensors")
        first = "body.features.conv0.weight"
        assert ours[first].shape == (64, 3, 7, 7)
        expected = ours if channels == 3 else {**ours, first: ours[first].sum(1, keepdim=True)}
        assert_same_state(without_head(found), expected)


@pytest.mark.parametrize("network", ["cnn-small", "densenet121"])
def test_weights_for_color_images_say_the_same_of_gray_ones(network, tmp_path, caplog):
    color, gray = large_spec(3, network), large_spec(1, network)
    held = other_start(color)
    save_file(held, tmp_path / "start.safetensors")
    found = bench_of(gray).start(init=tmp_path / "start.safetensors")
    x = torch.rand(2, 1, 64, 64)
    scores = []
    for spec, weights, image in ((color, held, x.expand(-1, 3, -1, -1)), (gray, found, x)):
        model = bench_of(spec).network().eval()
        model.load_state_dict(weights)
        scores.append(model(image))
    torch.testing.assert_close(*scores)
    (record,) = caplog.records
    assert re.match(
        r"learner.init has start weights for color images and these are gray; 'body\.[\w.]+' is "
        "summed over its three channels",
        record.message,
    )


def test_other_numbers_of_channels_do_not_fit(tmp_path):
    save_file(other_start(large_spec(2, "cnn-small")), tmp_path / "start.safetensors")
    with pytest.raises(UsageError, match=r"of 'body.0.weight' it has shape \(16, 2, 3, 3\)"):
        bench_of(large_spec(1, "cnn-small")).start(init=tmp_path / "start.safetensors")


def test_a_run_starts_from_it_and_a_checkpoint_serves_too(tmp_path):
    spec = toy_spec("multi-label", rounds=1)
    run_toy(spec, tmp_path / "first")
    checkpoint = next((tmp_path / "first/checkpoints").rglob("server.safetensors"))
    learner = {"network": "cnn-small", "init": str(checkpoint)}
    begun = bench_of(spec).start(init=checkpoint)
    assert_same_state(begun, server_weights(tmp_path / "first"))
    run_toy(toy_spec("multi-label", rounds=1, learner=learner), tmp_path / "second")
    other = [
        name
        for name, value in server_weights(tmp_path / "second").items()
        if not torch.equal(value, begun[name])
    ]
    assert other
