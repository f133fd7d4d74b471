"""What a site refuses on its own machine, whoever asks."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (consilia[flower])")

from consilia.engines.messages import Hello
from consilia.engines.packet import seal, unseal
from consilia.errors import MessageError
from consilia.federation.keys import new_key
from consilia.federation.proxy import passes
from consilia.federation.study import for_sites
from consilia.payload import pack
from tests.federation.support import MIXED, RUN, Federation, lines, spec_for


@pytest.fixture
def federation(tmp_path, monkeypatch):
    spec = spec_for("fedmix", sites=MIXED)
    return Federation(spec, tmp_path / "f", monkeypatch, ("introduce", "train", "evaluate"))


def ask(federation, *, site="bo", verb="introduce", key=None, study=None, **head):
    record = pack(Hello(), verb, site, 1)
    told = {"run": RUN, "study": study or for_sites(federation.spec), "site": site, "since": 0}
    asked = seal(record, key or federation.key, told | head)
    desk = federation.desks["bo"]
    reply, extra = unseal(desk.answer(asked), desk.key.public_key(), "bo", 1 << 30)
    assert extra == {"answers": asked.digest}
    return reply


def refused(federation, **changes):
    reply = ask(federation, **changes)
    assert reply.message == "Failed"
    return reply.body["reason"]


def test_an_honest_question_is_answered(federation):
    assert ask(federation).message == "Intro"


def test_a_message_that_another_key_signed_is_not_even_answered(federation):
    with pytest.raises(MessageError, match="not signed by the key it must come from"):
        ask(federation, key=new_key())
    assert not (federation.desks["bo"].folder / "ledger.jsonl").exists()


def test_a_message_for_another_site_is_not_answered(federation):
    with pytest.raises(MessageError, match="for site 'anna' came to site 'bo'"):
        ask(federation, site="anna")


@pytest.mark.parametrize(
    "head", [{"run": "../../x"}, {"run": RUN.upper()}, {"since": -1}, {"since": True}, {"more": 1}]
)
def test_a_head_that_is_no_head_is_not_answered(federation, head):
    with pytest.raises(MessageError, match="does not say which run"):
        ask(federation, **head)


@pytest.mark.parametrize("verb", ["examine", "export", "eval", "__init__"])
def test_what_is_not_on_the_allow_list_is_refused(federation, verb):
    assert f"does not answer '{verb}' messages" in refused(federation, verb=verb)


def changed(federation, **changes):
    study = json.loads(json.dumps(for_sites(federation.spec)))
    for key, value in changes.items():
        *parents, last = key.split("__")
        table = study
        for parent in parents:
            table = table[int(parent) if parent.isdigit() else parent]
        table[last] = value
    return study


STUDIES = {
    "other labels": ({"federation__labels": ["round", "star"]}, "the study's `labels` is"),
    "fewer labels": ({"federation__labels": ["round"]}, "the study's `labels` is"),
    "another size": ({"federation__image": {"size": [32, 32]}}, "the study's `image` is"),
    "another form": (
        {"federation__site__1__supervision": "mask"},
        "says `supervision` of site 'bo'",
    ),
    "another set": ({"federation__site__1__annotates": ["round"]}, "says `annotates` of site 'bo'"),
    "another name": ({"federation__site__1__name": "eve"}, "the study has no site 'bo'"),
    "a foreign method": ({"method": {"name": "os.system"}}, "no method 'os.system'"),
    "a foreign setting": ({"method__settings": {"code": "import os"}}, "no setting 'code'"),
    "a pooled method": ({"method": {"name": "central"}}, "needs all images or all labels"),
    "the oracle": ({"method": {"name": "oracle"}}, "needs all images or all labels"),
    "rows per case": ({"evaluate__per_case": True}, "does not give; set evaluate.per_case"),
    "features": ({"evaluate__portraits": True}, "does not give; set evaluate.portraits"),
    "an unknown key": ({"hook": "x"}, "unknown key 'hook'"),
    "text for a number": ({"rounds": "many"}, "'rounds'"),
}


@pytest.mark.parametrize("case", STUDIES)
def test_a_study_that_contradicts_the_declaration_is_refused(federation, case):
    changes, sentence = STUDIES[case]
    told = refused(federation, study=changed(federation, **changes))
    assert sentence in told


def test_a_task_that_was_not_declared_is_refused(federation):
    study = changed(federation, federation__task="classification")
    for site in study["federation"]["site"]:
        site["supervision"] = "image"
    assert "the study's `task` is" in refused(federation, study=study)


def test_a_study_that_changes_under_way_is_refused(federation):
    ask(federation)
    told = refused(federation, study=changed(federation, seed=5))
    assert told == "the study of this run has changed since it began"


def test_a_study_goes_on_under_a_version_that_writes_out_more_defaults(federation):
    ask(federation)
    desk = federation.desks["bo"]
    path = desk.folder / "state" / RUN / "study.json"
    study = json.loads(path.read_text())
    del study["training"]["crop"], study["evaluate"]["unit"]
    path.write_text(json.dumps(study, sort_keys=True))
    desk._held.clear()
    assert ask(federation).message == "Intro"
    path.write_text("{")
    desk._held.clear()
    assert refused(federation) == "the study of this run has changed since it began"


def test_data_that_changes_under_way_is_refused(federation, monkeypatch):
    from consilia.federation import desk
    from consilia.testing import toy_sites

    ask(federation)
    federation.restart("bo")
    other = toy_sites(federation.spec, train=7)["bo"]
    monkeypatch.setattr(desk, "load_own", lambda *_: other)
    told = refused(federation)
    assert told == "this site's images or labels are not those that the run began with"


def test_a_site_reads_its_images_as_one_process_does(tmp_path, monkeypatch):
    """The wideness of drawn boxes, their seed and the share for validation come from the study."""
    from consilia.engines.inprocess import load_own
    from consilia.federation import desk

    honest = load_own
    shape = {"size": [16, 16], "channels": 1}
    table = {"name": "bo", "data": "dataset:phantom-mixed/bergen", "supervision": "box"}
    simulate = {"seed": 3, "margin": [2, 3]}
    spec = spec_for("fedmix", sites=MIXED, simulate=simulate, evaluate={"validation": 0.25})
    declared = {"task": "segmentation", "labels": ["lesion"], "image": shape, "site": [table]}
    federation = Federation(spec, tmp_path / "f", monkeypatch)
    own = type(spec.federation).model_validate({"name": "toy", **declared})
    federation.desks["bo"].federation = own
    monkeypatch.setattr(desk, "load_own", honest)
    other = own.model_dump(mode="json", exclude_none=True)
    other["site"] = [{**table, "data": "data"}, {"name": "anna", "data": "data"}]
    study = {**changed(federation), "federation": other}
    assert ask(federation, study=study).message == "Intro"
    (worker, _), *_ = federation.desks["bo"]._held.values()
    expected = honest(spec, own, "bo", tmp_path)
    assert worker.data.fingerprint == expected.fingerprint
    plain = spec.model_copy(update={"simulate": type(spec.simulate)(seed=3)})
    assert honest(plain, own, "bo", tmp_path).fingerprint != expected.fingerprint


def test_a_paused_site_answers_nothing(federation):
    (federation.desks["bo"].folder / "paused").touch()
    assert refused(federation) == "this site is paused by its hospital"


def test_a_message_that_is_not_finite_is_refused(federation):
    federation.run()
    name, _, asked, _ = next(p for p in federation.wire.packets if p[1]["verb"] == "train")
    record, extra = unseal(asked, federation.key.public_key(), name, 1 << 30)
    first = next(iter(record.tensors))
    record.tensors[first].fill_(float("nan"))
    desk = federation.desks[name]
    answered = desk.answer(seal(record, federation.key, extra))
    reply, _ = unseal(answered, desk.key.public_key(), name, 1 << 30)
    assert reply.body["reason"] == "the coordinator's message holds a number that is not finite"


def test_refusals_are_in_the_ledger_too(federation):
    refused(federation, verb="examine")
    (down, up) = lines(federation.desks["bo"].folder, "ledger.jsonl")
    assert (down["direction"], up["direction"], up["message"]) == ("down", "up", "Failed")


def test_a_folder_with_file_names_in_an_error_tells_none_of_them(federation, monkeypatch):
    from consilia.errors import DataError
    from consilia.federation import desk

    def broken(*_, **__):
        raise DataError("file 'miller-anna.png' cannot be read")

    monkeypatch.setattr(desk, "load_own", broken)
    assert refused(federation) == "this site's data cannot be used as declared; its log says why"


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", b"/v1/fleet/pull-messages", True),
        ("POST", b"/v1/fleet/push-object?x=1", False),
        ("GET", b"/v1/fleet/pull-messages", False),
        ("POST", b"/v1/fleet", False),
        ("POST", b"/v1/control/start-run", False),
        ("POST", b"/v1/fleet/../control/start-run", False),
        ("POST", b"/v1/fleet/%2e%2e/control/start-run", False),
        ("POST", b"/v1/fleet//x", False),
        ("POST", b"/v1/fleet/x\\..", False),
        ("POST", b"/V1/FLEET/x", False),
        ("POST", b"/v1/fleet/\xe2\x80\xae", False),
    ],
)
def test_only_plain_paths_of_the_fleet_api_pass_the_door(method, path, expected):
    assert passes(method, path) is expected


def test_flower_is_not_imported_loud():
    """Importing the adapter without the quiet settings is refused before Flower is imported."""
    script = "import sys\ntry:\n    import consilia.engines.flower\nexcept ImportError as e:\n"
    script += "    print('hush' in str(e), 'flwr' in sys.modules)"
    loud = {k: v for k, v in os.environ.items() if not k.startswith(("FLWR", "RAY"))}
    found = subprocess.run(
        [sys.executable, "-c", script], env=loud, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["True", "False"]
