"""Weights between networks and messages: copies, in place, whatever the order in memory."""

import torch

from consilia.training.transfer import fetch, fill, sent


def test_what_is_fetched_is_a_copy_that_lies_as_it_lay():
    tensors = {
        "w": torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "n": torch.tensor(3),
        "p": torch.nn.Parameter(torch.ones(2)),
    }
    found = fetch(tensors)
    assert list(found) == list(tensors)
    for name, value in found.items():
        assert torch.equal(value, tensors[name])
        assert value.stride() == tensors[name].stride()
        assert not value.requires_grad
        assert value.data_ptr() != tensors[name].data_ptr()
    assert set(found.buffers) == {torch.float32, torch.int64}  # all of one type in one piece


def test_filling_changes_the_tensors_themselves_and_leaves_others_alone():
    tensors = {"w": torch.nn.Parameter(torch.zeros(2, 2)), "b": torch.zeros(2)}
    where = tensors["w"].data_ptr()
    fill(tensors, {"w": torch.ones(2, 2)})
    assert tensors["w"].data_ptr() == where
    assert torch.equal(tensors["w"], torch.ones(2, 2))
    assert torch.equal(tensors["b"], torch.zeros(2))


def test_what_is_sent_to_where_it_lies_is_not_copied():
    weights = {"w": torch.ones(2, 2), "n": torch.tensor(3)}
    found = sent(weights, torch.device("cpu"))
    assert list(found) == list(weights)
    assert all(found[name] is weights[name] for name in weights)


def test_what_was_fetched_fills_a_network_again_to_the_bit():
    network = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
    tensors = network.state_dict(keep_vars=True)
    kept = fetch(tensors)
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.zero_()
    fill(tensors, {name: kept[name] for name in reversed(list(kept))})
    assert all(torch.equal(tensors[name], value) for name, value in kept.items())
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_weights_that_stay_on_a_device_fill_its_networks_without_the_host(monkeypatch):
    monkeypatch.setattr("consilia.training.transfer.STAY", {"cpu"})
    tensors = {"w": torch.arange(6.0).view(2, 3), "n": torch.tensor(3)}
    kept = fetch(tensors)
    assert kept.there is not None
    goals = {"w": torch.zeros(2, 3), "n": torch.tensor(0)}
    with monkeypatch.context() as patched:
        patched.setattr(type(kept), "buffers", property(lambda self: 1 / 0))
        fill(goals, kept)
        assert sent(kept, torch.device("cpu"))["w"].tolist() == tensors["w"].tolist()
    assert torch.equal(goals["w"], tensors["w"])
    assert goals["n"] == 3
    kept["w"].zero_()  # from now on the host's copy counts
    fill(goals, kept)
    assert not goals["w"].any()
