"""The learners, as one table: what `[learner] name` in a run file may say."""

from __future__ import annotations

from collections.abc import Callable

from consilia.declare import Federation
from consilia.errors import UsageError, unknown
from consilia.training.dual import DualLearner
from consilia.training.learner import Learner, PlainLearner, least_side
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


def refuse_crop(learner: Learner, side: int) -> None:
    """Refuse crops that are too small for a network.

    A U-Net enlarges what it has halved to the size it was, so that a side needs to be no multiple.
    """
    if 0 < side < least_side(learner.network):
        msg = (
            f"network '{learner.network}' takes images from {least_side(learner.network)} pixels a side, but "
            f"training.crop is {side}; choose a larger crop or a smaller network"
        )
        raise UsageError(msg)
