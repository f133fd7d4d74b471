"""Optional tracking: TensorBoard and MLflow, from the same lines that `rounds.jsonl` holds."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilia.errors import UsageError
from consilia.runs.spec import RunSpec

Listener = Callable[[dict[str, Any]], None]
LOG = logging.getLogger("consilia")


@contextmanager
def trackers(spec: RunSpec, folder: Path) -> Iterator[tuple[Listener, ...]]:
    """Yield what to call after each round, for every tracker the run file names."""
    makers = {"tensorboard": _tensorboard, "mlflow": _mlflow}
    with ExitStack() as stack:
        yield tuple(
            Guarded(name, stack.enter_context(makers[name](spec, folder)))
            for name in spec.engine.track
        )


@dataclass
class Guarded:
    """A tracker that fails is told once and left alone: a run does not end for its diary."""

    name: str
    after: Listener
    failed: bool = False

    def __call__(self, line: dict[str, Any]) -> None:
        """Hand a round on, while that works."""
        if self.failed:
            return
        try:
            self.after(line)
        except Exception as error:
            self.failed = True
            LOG.warning(
                "'%s' tracks this run no longer, from round %d on: %s: %s; the run goes on, and "
                "rounds.jsonl has every number",
                self.name,
                line["round"],
                type(error).__name__,
                error,
            )


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
        raise UsageError(_not_installed("tensorboard")) from None
    with ExitStack() as stack:
        writer: Any = None

        def after(line: dict[str, Any]) -> None:
            nonlocal writer
            if writer is None:  # a run that is refused leaves nothing behind
                writer = SummaryWriter(str(folder.parent / ".tensorboard" / folder.name))
                stack.callback(writer.close)
            for key, value in scalars(line).items():
                writer.add_scalar(key, value, line["round"])

        yield after


@contextmanager
def _mlflow(spec: RunSpec, folder: Path) -> Iterator[Listener]:
    try:
        import mlflow
    except ImportError:
        raise UsageError(_not_installed("mlflow")) from None
    with ExitStack() as stack:
        begun = False

        def after(line: dict[str, Any]) -> None:
            nonlocal begun
            if not begun:
                mlflow.set_experiment(spec.study)
                stack.enter_context(mlflow.start_run(run_name=spec.run_name))
                chosen = {"method": spec.method.name, "seed": spec.seed, **spec.method.settings}
                mlflow.log_params(chosen)
                begun = True
            values = {_plain(key): value for key, value in scalars(line).items()}
            mlflow.log_metrics(values, step=line["round"])

        yield after


def _plain(key: str) -> str:
    """Return a path in the characters that MLflow takes; a label may hold others."""
    return re.sub(r"[^\w.\- :]", "_", key.replace("/", "."))


def _not_installed(name: str) -> str:
    return (
        f"engine.track names '{name}', which is not installed; in the checkout of Consilia, "
        f"pip install -c constraints.txt -e '.[{name}]'"
    )
