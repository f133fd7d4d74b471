"""The weakenings of the papers by name: one recipe per site, in the paper's order."""

from __future__ import annotations

from consilia.declare import Supervision
from consilia.weaken.drop_labels import FEDPSL_A, FEDPSL_B
from consilia.weaken.recipe import Recipe

MASK, IMAGE, NONE = (
    Recipe(form) for form in (Supervision.MASK, Supervision.IMAGE, Supervision.NONE)
)
FEDMIX_BOX = Recipe(Supervision.BOX, margin=(1, 10))
SCRIBBLE = Recipe(Supervision.SCRIBBLE)
NOISY = Recipe(Supervision.SCRIBBLE, style="noisy")
POINT = Recipe(Supervision.POINT)
BLOCK = Recipe(Supervision.BLOCK)
TIGHT_BOX = Recipe(Supervision.BOX, margin=(0, 0))
TIGHT_ROTATED_BOX = Recipe(Supervision.ROTATED_BOX, margin=(0, 0))
FUNDUS_BOX = Recipe(Supervision.BOX, margin=(0, 0), convert="scribble")


def fedia_ms(m: int) -> tuple[float, ...]:
    """Return FedIA's completeness of the four MS sites, a_k = 0.2k − 0.1m + 0.4, m 0 to 3."""
    return tuple((2 * k - m + 4) / 10 for k in range(4))


def fedia_lung(m: int) -> tuple[float, ...]:
    """Return FedIA's completeness of the four LUNG sites, a_k = 0.1k − 0.3m + 0.7, m 0 to 2."""
    return tuple((k - 3 * m + 7) / 10 for k in range(4))


def _incomplete(grid: tuple[float, ...]) -> tuple[Recipe, ...]:
    return tuple(Recipe(Supervision.MASK, completeness=share) for share in grid)


def _tagged(sets: tuple[tuple[str, ...], ...]) -> tuple[Recipe, ...]:
    return tuple(Recipe(Supervision.IMAGE, annotates=labels, exclusive=False) for labels in sets)


PRESETS: dict[str, tuple[Recipe, ...]] = {
    "fedmix-mask": (MASK,),
    "fedmix-box": (FEDMIX_BOX,),
    "fedmix-image": (IMAGE,),
    "fedmix-none": (NONE,),
    "fedmix-breast-ubl": (NONE, FEDMIX_BOX, MASK),
    "fedlsm-tags": (Recipe(Supervision.IMAGE, exclusive=False),),
    "fedlsm-tags-exclusive": (IMAGE,),
    "fedlppa-scribble": (SCRIBBLE,),
    "fedlppa-scribble2": (NOISY,),
    "fedlppa-point": (POINT,),
    "fedlppa-block": (BLOCK,),
    "fedlppa-box": (TIGHT_BOX,),
    "fedlppa-rotated-box": (TIGHT_ROTATED_BOX,),
    "fedlppa-fundus": (SCRIBBLE, NOISY, FUNDUS_BOX, POINT, BLOCK),
    "fedlppa-octa": (SCRIBBLE, POINT, BLOCK, TIGHT_BOX, NOISY),
    "fedlppa-endoscopy": (POINT, SCRIBBLE, TIGHT_ROTATED_BOX, BLOCK),
    "fedlppa-prostate": (BLOCK, POINT, SCRIBBLE, POINT, NOISY, TIGHT_BOX),
    "fedpsl-a": _tagged(FEDPSL_A),
    "fedpsl-b": _tagged(FEDPSL_B),
    **{f"fedia-ms-m{m}": _incomplete(fedia_ms(m)) for m in range(4)},
    **{f"fedia-lung-m{m}": _incomplete(fedia_lung(m)) for m in range(3)},
}
