import json

from consilia.runs.environment import environment
from consilia.runs.store import RunFolder
from consilia.testing import toy_spec


def test_the_environment_names_versions_and_no_host(tmp_path):
    folder = RunFolder.create(tmp_path / "run", toy_spec())
    held = json.loads((folder.path / "environment.json").read_text())
    assert held == json.loads(json.dumps(environment()))
    assert "torch" in held["packages"]
    assert set(held) == {
        "consilia",
        "cores",
        "data",
        "packages",
        "platform",
        "processor",
        "python",
    }


def test_a_run_is_the_same_on_another_card(tmp_path):
    card = {"gpu": "a card", "kernels": "used"}
    folder = RunFolder.create(tmp_path / "run", toy_spec(), card=card)
    again = RunFolder.create(tmp_path / "run", toy_spec(), card={"gpu": "another"})
    assert again.environment() == json.loads(json.dumps(environment(card=card)))
    assert folder.asked() == RunFolder.create(tmp_path / "other", toy_spec()).asked()
