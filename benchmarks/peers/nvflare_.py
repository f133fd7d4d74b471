"""FedAvg in NVFlare's simulator."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from nvflare.app_opt.pt.job_config.fed_avg import FedAvgJob
from nvflare.job_config.script_runner import ScriptRunner

from benchmarks.peers import work


def main() -> None:
    """Run all rounds; a round is the time between two models that reach the first client."""
    with tempfile.TemporaryDirectory() as folder:
        noted = Path(folder) / "rounds.txt"
        os.environ["ROUNDS_FILE"] = str(noted)
        job = FedAvgJob(
            name="peers", n_clients=work.SITES, num_rounds=work.ROUNDS + 1, initial_model=work.Net()
        )
        client = Path(__file__).with_name("nvflare_client.py")
        for site in range(1, work.SITES + 1):
            arguments = " ".join(a for a in sys.argv[1:] if a == "--noop")
            runner = ScriptRunner(script=str(client), script_args=arguments)
            job.to(runner, f"site-{site}")
        job.simulator_run(f"{folder}/work")
        lines = [line.split() for line in noted.read_text().splitlines()]
        work.tell([(float(wall), float(processor)) for wall, processor in lines])


if __name__ == "__main__":
    main()
