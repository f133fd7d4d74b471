"""The learners, as one table: what `[learner] name` in a run file may say."""

from __future__ import annotations

from collections.abc import Callable

from consilia.declare import Federation
from consilia.errors import UsageError, suggestion
from consilia.training.dual import DualLearner
from consilia.training.learner import Learner, PlainLearner
from consilia.training.settings import LearnerSettings

LEARNERS: dict[str, Callable[[LearnerSettings, Federation], Learner]] = {
    "plain": PlainLearner.of,
    "dual": DualLearner.of,
}


def make_learner(settings: LearnerSettings, federation: Federation) -> Learner:
    """Return the learner that a run file names, checked against the task."""
    if settings.name not in LEARNERS:
        near = suggestion(settings.name, LEARNERS)
        msg = f"no learner named '{settings.name}'{near} (known: {', '.join(LEARNERS)})"
        raise UsageError(msg)
    return LEARNERS[settings.name](settings, federation)
