"""Optional tracking: TensorBoard and MLflow, from the same lines that `rounds.jsonl` holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from consilia.errors import UsageError
from consilia.runs.spec import RunSpec

Listener = Callable[[dict[str, Any]], None]


@contextmanager
def trackers(spec: RunSpec, folder: Path) -> Iterator[tuple[Listener, ...]]:
    """Yield what to call after each round, for every tracker the run file names."""
    makers = {"tensorboard": _tensorboard, "mlflow": _mlflow}
    with ExitStack() as stack:
        yield tuple(stack.enter_context(makers[name](spec, folder)) for name in spec.engine.track)


def scalars(line: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a round, by path: `loss/oslo`, `test/dice/oslo`, `share/oslo`."""
    found: dict[str, float] = {"bytes/up": line["bytes_up"], "bytes/down": line["bytes_down"]}
    for site, values in line["sites"].items():
        found |= {f"{key}/{site}": value for key, value in values.items()}
    found |= {f"share/{site}": share for site, share in line["shares"].items()}
    for split in ("test", "validation"):
        for site, values in line.get(split, {}).items():
            found |= {f"{split}/{key}/{site}": v for key, v in values.items() if v is not None}
    return found


@contextmanager
def _tensorboard(spec: RunSpec, folder: Path) -> Iterator[Listener]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        msg = "engine.track names 'tensorboard', which is not installed; pip install consilia[tensorboard]"
        raise UsageError(msg) from None
    writer = SummaryWriter(str(folder.parent / ".tensorboard" / folder.name))

    def after(line: dict[str, Any]) -> None:
        for key, value in scalars(line).items():
            writer.add_scalar(key, value, line["round"])

    try:
        yield after
    finally:
        writer.close()


@contextmanager
def _mlflow(spec: RunSpec, folder: Path) -> Iterator[Listener]:
    try:
        import mlflow
    except ImportError:
        msg = "engine.track names 'mlflow', which is not installed; pip install consilia[mlflow]"
        raise UsageError(msg) from None
    mlflow.set_experiment(spec.study)
    with mlflow.start_run(run_name=spec.run_name):
        mlflow.log_params({"method": spec.method.name, "seed": spec.seed, **spec.method.settings})
        yield lambda line: mlflow.log_metrics(
            {key.replace("/", "."): value for key, value in scalars(line).items()},
            step=line["round"],
        )
