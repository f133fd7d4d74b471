"""Weights that a GPU made stay there from round to round, in methods that only average and mix them."""

import json
import subprocess
import sys

#: In a process of its own, for the shapes that tests check read every tensor.
SCRIPT = """
import functools, json, sys, tempfile
from pathlib import Path

import consilia.training.transfer
from consilia.engines.inprocess import run_in_process
from consilia.payload import DeviceWeights
from consilia.testing import toy_sites, toy_spec

consilia.training.transfer.STAY = {"cpu"}
copied, reads = DeviceWeights.buffers.func, []
def buffers(self):
    reads.append(self)
    return copied(self)
noted = functools.cached_property(buffers)
noted.__set_name__(DeviceWeights, "buffers")
DeviceWeights.buffers = noted

found = {}
for name, method, settings in json.loads(sys.argv[1]):
    spec = toy_spec(
        labels=["round"],
        rounds=6,
        method={"name": method, "settings": settings},
        evaluate={"every": 100, "pictures": 0},
        engine={"checkpoint_every": 100, "ledger": "shapes"},
    )
    after = [len(reads)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        listen = (lambda line: after.append(len(reads)),)
        run_in_process(spec, path / "run", data=path, sites=toy_sites(spec), listeners=listen)
    found[name] = after
print(json.dumps(found))
"""
CASES = [
    ("fedavg", "fedavg", {}),
    ("fedmix", "fedmix", {}),
    ("fedia", "fedia", {}),
    ("fedrep", "fedrep", {}),
    ("fedbn", "fedbn", {}),
    ("fedala", "fedala", {"steady": 10.0}),
    ("fedlppa", "fedlppa", {"la_threshold": 10.0}),
    ("fedlppa, own decoders", "fedlppa", {"la_threshold": 10.0, "auxiliary": "own"}),
    ("fedlppa, one decoder", "fedlppa", {"pd": False, "la": False}),
]


def test_no_round_brings_weights_to_the_host():
    command = [sys.executable, "-c", SCRIPT, json.dumps(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == {name for name, *_ in CASES}
    for name, after in found.items():
        assert after[5] == after[2], (name, after)  # the first rounds start up
        assert after[6] > after[5], name  # the last one is kept, which reads: it would be seen
