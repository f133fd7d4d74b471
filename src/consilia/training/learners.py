"""The learners, as one table: what `[learner] name` in a run file may say."""

from __future__ import annotations

from collections.abc import Callable

from consilia.declare import Federation
from consilia.errors import UsageError, unknown
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
        raise UsageError(unknown("learner", settings.name, LEARNERS))
    return LEARNERS[settings.name](settings, federation)
