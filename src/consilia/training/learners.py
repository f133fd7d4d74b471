"""The learners, as one table: what `[learner] name` in a run file may say."""

from __future__ import annotations

from collections.abc import Callable

from consilia.declare import Federation
from consilia.errors import UsageError, unknown
from consilia.networks.unet import UNETS
from consilia.training.dual import DualLearner, FedLPPALearner
from consilia.training.learner import CLASSIFIERS, Learner, PlainLearner
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
    """Refuse crops that a network cannot take: built for another size, or halved more often than they can be.

    A U-Net enlarges what it has halved to the size it was, so that a side needs to be no multiple.
    """
    if side and isinstance(learner, FedLPPALearner) and learner.parts.fusion:
        msg = (
            "method 'fedlppa' has prompts as large as images, so that these cannot be cropped, but "
            f"training.crop is {side}; set it to 0"
        )
        raise UsageError(msg)
    unet = UNETS.get(learner.network)
    halvings = CLASSIFIERS.get(learner.network, 0) if unet is None else len(unet.channels) - 1
    if 0 < side < 2**halvings:
        msg = (
            f"network '{learner.network}' halves images {halvings} times, so each side needs "
            f"{2**halvings} pixels, but training.crop is {side}; choose a larger crop or a smaller network"
        )
        raise UsageError(msg)
