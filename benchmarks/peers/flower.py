"""FedAvg in Flower's simulation engine, which runs clients in Ray's processes."""

from __future__ import annotations

from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers import work

ENDS: list[tuple[float, float]] = []
client = ClientApp()
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train at a client."""
    torch.set_num_threads(1)
    network = work.Net()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    work.train(network, *work.data(int(context.node_config["partition-id"])))
    content = RecordDict(
        {
            "arrays": ArrayRecord(network.state_dict()),
            "metrics": MetricRecord({"num-examples": work.IMAGES, "loss": 0.5}),
        }
    )
    return Message(content=content, reply_to=message)


class Timed(FedAvg):
    """Notes when each round has been aggregated."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """Aggregate, and look at the clock."""
        told = super().aggregate_train(server_round, replies)
        ENDS.append(work.now_all())
        return told


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds."""
    strategy = Timed(
        fraction_train=1.0,
        fraction_evaluate=0.0,
        min_train_nodes=work.SITES,
        min_available_nodes=work.SITES,
    )
    start = ArrayRecord(work.Net().state_dict())
    strategy.start(grid=grid, initial_arrays=start, num_rounds=work.ROUNDS)


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=work.SITES, backend_config=resources)
    work.tell(ENDS)
