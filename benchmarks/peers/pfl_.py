"""FedAvg in pfl-research, whose simulated backend trains users one after another in one process."""

from __future__ import annotations

from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from benchmarks.peers import work

ENDS: list[tuple[float, float]] = []


class Clock(TrainingProcessCallback):
    """Looks at the clock after each central iteration."""

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Note the time."""
        ENDS.append(work.now())
        return False, Metrics()


def main() -> None:
    """Run all rounds; pfl averages what is trained, not the statistics of normalisation layers."""
    torch.set_num_threads(1)
    network = work.Net()
    users = {str(site): work.data(site) for site in range(work.SITES)}

    def user(name: str) -> Dataset:
        return Dataset(raw_data=list(users[name]), user_id=name)

    def names() -> Any:
        while True:
            yield from users

    turn = names()
    federated = FederatedDataset(user, lambda: next(turn))
    model = PyTorchModel(
        model=network,
        local_optimizer_create=lambda parameters, lr: torch.optim.Adam(parameters, lr, fused=True),
        central_optimizer=torch.optim.SGD(network.parameters(), 1.0),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=work.ROUNDS,
            evaluation_frequency=work.ROUNDS + 1,
            train_cohort_size=work.SITES,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=federated, val_data=federated),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1 if work.TRAINS else 0,
            local_learning_rate=work.RATE,
            local_batch_size=work.BATCH,
        ),
        callbacks=[Clock()],
    )
    work.tell(ENDS)


if __name__ == "__main__":
    main()
