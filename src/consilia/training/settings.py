"""The tables [learner] and [training] of a run file; plain Python, so that help stays instant."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from consilia.declare.federation import Declared

Positive = Annotated[int, Field(ge=1)]
Beta = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Intensity = Annotated[float, Field(allow_inf_nan=False)]
Spread = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class LearnerSettings(Declared):
    """Which network learns, and on which loss."""

    name: str = "plain"
    network: str = "auto"
    objective: Literal["auto", "dice", "dice-foreground", "partial-ce", "bce", "ce"] = "auto"
    normalise: Literal["unit", "instance", "fixed"] = "unit"
    mean: tuple[Intensity, ...] | None = None
    deviation: tuple[Spread, ...] | None = None
    class_weight: Literal["none", "positive", "entry"] = "none"
    init: str | None = None


class Training(Declared):
    """How a site trains within one round."""

    batch: Positive = 8
    epochs: Positive = 1
    steps: Positive | None = None
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    weight_decay: Rate = 1e-4
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    momentum: Rate = 0.0
    keep_optimizer: bool = True
    schedule: Literal["constant", "poly"] = "constant"
    power: Rate = 0.9
    augment: Literal["none", "hflip", "flips", "rotate", "mild"] = "flips"
    crop: Annotated[int, Field(ge=0)] = 0
    intensity: Literal["none", "fedia"] = "none"

    def without_augmentation(self) -> Training:
        """Return the same training on images as they are."""
        return self.model_copy(update={"augment": "none", "crop": 0, "intensity": "none"})
