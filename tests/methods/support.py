"""What the method tests share."""

import json

import torch
from safetensors.torch import load_file

from consilia.runs.store import RunFolder


def final_state(path):
    """Return every tensor of a run's last checkpoint: the server's and all sites' memories."""
    _, folder = RunFolder.open(path).latest_checkpoint()
    files = sorted(folder.rglob("*.safetensors"))
    return {
        f"{file.relative_to(folder)}:{name}": tensor
        for file in files
        for name, tensor in load_file(file).items()
    }


def assert_same_state(one, other):
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert different == []


def server_weights(path):
    """Return the global weights of a run's last checkpoint."""
    prefixes = ("server.safetensors:weights/", "server.safetensors:averaging/weights/")
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in final_state(path).items()
        for prefix in prefixes
        if name.startswith(prefix)
    }


def without_times(metrics):
    return {key: value for key, value in metrics.items() if key != "seconds"}


def ledger_fields(path, direction, verb):
    lines = [json.loads(line) for line in (path / "ledger.jsonl").read_text().splitlines()]
    return {
        (line["message"], line["field"])
        for line in lines
        if line["direction"] == direction and line["verb"] == verb
    }
