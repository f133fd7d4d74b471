"""What happens to whole machines: a full disk, a frozen process, a power cut, systemd."""

import os
import signal
import subprocess
import time

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (consilia[flower])")

from consilia.federation import processes
from tests.federation.live import SEGMENTATION, Live, finish, until
from tests.federation.support import lines

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("federation-machines"),
]
SLOWLY = ("--deadline", "240", "--patience", "90")


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    made = Live(tmp_path_factory.mktemp("machines"), SEGMENTATION, disks=("bergen",))
    try:
        yield made.up()
    finally:
        made.down()


def fill(path):
    with path.open("wb", buffering=0) as handle:
        while True:
            handle.write(b"x" * 4096)


def absent(federation, name, site):
    return [r for r, here in federation.took_part(name).items() if site not in here]


def reasons(federation, name):
    return {e["event"] for line in lines(federation.run(name)) for e in line["events"]}


def test_a_full_disk_at_a_site_costs_rounds_and_nothing_else(live):
    """A real file system of 24 MB, filled to its last byte and emptied again."""
    spec = live.spec("fedia", rounds=15, evaluate={"every": 15})
    filler = live.folders["bergen"].folder / "filler"
    child = live.start(spec, "full", "--deadline", "60", "--patience", "30")
    until(lambda: 2 in live.took_part("full"))
    with pytest.raises(OSError, match="No space left"):
        fill(filler)
    until(lambda: len(absent(live, "full", "bergen")) >= 2)
    filler.unlink()
    finish(child, 900)
    missed = absent(live, "full", "bergen")
    assert 15 not in missed, "it did not come back"
    why = reasons(live, "full")
    assert why <= {
        "absent: this site cannot write its ledger, so it answers nothing",
        "failed: OSError; the site's log has the rest",
    }
    live.assert_as_in_one_process("full", spec)


def test_a_site_that_never_answers_costs_its_deadline(live):
    """Its training process is frozen, so that all is connected and nothing is done."""
    spec = live.spec("fedia", rounds=8, seed=1, evaluate={"every": 8})
    child = live.start(spec, "frozen", "--deadline", "15", "--patience", "30")
    until(lambda: 1 in live.took_part("frozen"))
    pid = live.pid("bergen", "train")
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: absent(live, "frozen", "bergen"))
    finally:
        os.kill(pid, signal.SIGCONT)
    finish(child, 600)
    assert 8 not in absent(live, "frozen", "bergen"), "it did not come back"
    assert reasons(live, "frozen") == {"absent: it did not answer within 15 s"}
    slow = [x["seconds"] for x in lines(live.run("frozen")) if "bergen" not in x["took_part"]]
    assert all(14 < seconds < 30 for seconds in slow)
    live.assert_as_in_one_process("frozen", spec)


def cut_power(live, who):
    """Kill the keeper of a folder and all it keeps, at once."""
    pids = processes.pids(live.coordinator.folder if who == "coordinator" else live.path / who)
    for name in ("keeper", *(n for n in pids if n != "keeper")):
        os.kill(pids[name], signal.SIGKILL)
    for one in [one for one in processes._KEEPERS if one.pid == pids["keeper"]]:
        one.wait()
        processes._KEEPERS.remove(one)


def test_a_power_cut_at_a_hospital_costs_a_wait(live):
    spec = live.spec("fedia", rounds=4, seed=2, evaluate={"every": 4})
    child = live.start(spec, "power-site", *SLOWLY)
    until(lambda: 1 in live.took_part("power-site"))
    time.sleep(1)
    cut_power(live, "bergen")
    processes.start(live.folders["bergen"].folder)
    finish(child, 600)
    assert absent(live, "power-site", "bergen") == []
    live.assert_as_in_one_process("power-site", spec)


def test_a_power_cut_at_the_coordinator_ends_in_resume(live):
    spec = live.spec("fedia", rounds=4, seed=3, evaluate={"every": 4})
    child = live.start(spec, "power-coordinator", *SLOWLY)
    until(lambda: 1 in live.took_part("power-coordinator"))
    time.sleep(1)
    child.kill()
    child.wait()
    cut_power(live, "coordinator")
    live.up()
    finish(live.resume("power-coordinator", *SLOWLY), 600)
    assert absent(live, "power-coordinator", "bergen") == []
    live.assert_as_in_one_process("power-coordinator", spec)


def test_what_systemd_starts_lets_the_enrolled_sites_in(tmp_path):
    """Nobody ever gave `coordinator up` before: the units' own command has to know whom it admitted."""
    federation = Live(tmp_path, SEGMENTATION)
    kept = [federation.keep("coordinator", "coordinator")]
    try:
        kept += [federation.keep(site, "site") for site in federation.sites]
        federation.wait_online(federation.sites)
        for child in kept:
            child.terminate()
        assert [child.wait(30) for child in kept] == [0, 0, 0]
        assert not any(processes.running(path) for path in tmp_path.iterdir() if path.is_dir())
    finally:
        federation.down()


def test_a_disk_of_its_own_is_what_a_site_of_these_tests_has(live):
    found = subprocess.run(
        ["stat", "-f", "-c", "%T", str(live.folders["bergen"].folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "tmpfs"
