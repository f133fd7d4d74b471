"""The queues of runs for a lent GPU name studies, settings and methods that exist and go together."""

from pathlib import Path

import pytest
from benchmarks.sweep import asked

from consilia.methods import make_method, refuse_unfit

QUEUES = sorted((Path(__file__).parent.parent / "benchmarks" / "queues").glob("*.txt"))


@pytest.mark.parametrize("queue", QUEUES, ids=lambda path: path.stem)
def test_every_run_of_a_queue_could_begin(queue: Path) -> None:
    given = asked([f"@{queue}", "--minutes", "9"])

    assert given.minutes == 9
    assert len(set(given.jobs)) == len(given.jobs) > 10
    for job in given.jobs:
        spec = job.spec()
        method = make_method(spec.method.name, spec.method.settings)
        refuse_unfit(spec.method.name, method, spec.federation, spec.training)
        assert spec.engine.lanes == 1


def test_comments_in_a_queue_are_left_out(tmp_path: Path) -> None:
    queue = tmp_path / "queue.txt"
    queue.write_text("# first\nfaz/fedavg,fedbn/0,1   # and why\n\n--workers 3\n", encoding="utf-8")

    given = asked([f"@{queue}"])

    assert [(job.variant, job.seed) for job in given.jobs] == [
        ("fedavg", 0), ("fedavg", 1), ("fedbn", 0), ("fedbn", 1)
    ]  # fmt: skip
    assert given.workers == 3
