"""The weakenings of the papers by name: one recipe per site, in the paper's order."""

from __future__ import annotations

from dataclasses import replace

from consilia.declare import Federation, Supervision
from consilia.errors import UsageError
from consilia.weaken.drop_labels import FEDPSL_A, FEDPSL_B, deal_labels
from consilia.weaken.recipe import Recipe
from consilia.weaken.regions import stream

MASK, IMAGE, NONE = (
    Recipe(form) for form in (Supervision.MASK, Supervision.IMAGE, Supervision.NONE)
)
FEDMIX_BOX = Recipe(Supervision.BOX, margin=(1, 10))
SCRIBBLE = Recipe(Supervision.SCRIBBLE)
TAGS = Recipe(Supervision.IMAGE, exclusive=False)
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
    "fedlsm-tags": (TAGS,),
    "fedlsm-tags-exclusive": (IMAGE,),
    "fedlsm-sets": (TAGS,),
    "fedlsm-sets-exclusive": (IMAGE,),
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
#: Presets that deal labels from the seed: how many each site marks (FedLSM, both of its tasks).
DEALT: dict[str, int] = {"fedlsm-sets": 3, "fedlsm-sets-exclusive": 3}


def recipes_of(preset: str, federation: Federation, source: str, seed: int) -> dict[str, Recipe]:
    """Return each site's recipe: the only one, the one in its place, or one with labels dealt to it.

    Args:
        preset: Its name.
        federation: The sites, all of them, and their labels.
        source: What the user called them.
        seed: Decides who marks which labels, where they are dealt.

    Raises:
        UsageError: The preset is for other sites or labels.
    """
    recipes, names = PRESETS[preset], [declared.name for declared in federation.site]
    _check_exclusive(preset, federation, source)
    if preset in DEALT:
        dealt = _dealt(preset, federation, source, seed)
        return {name: replace(recipes[0], annotates=dealt[name]) for name in names}
    if len(recipes) == 1:
        return dict.fromkeys(names, recipes[0])
    if len(recipes) != len(names):
        msg = f"preset '{preset}' is for {len(recipes)} sites, but '{source}' has {len(names)}; use --form"
        raise UsageError(msg)
    return dict(zip(names, recipes, strict=True))


def _dealt(
    preset: str, federation: Federation, source: str, seed: int
) -> dict[str, tuple[str, ...]]:
    """Return the labels that each site is dealt, whatever the order of the sites."""
    each, labels, sites = DEALT[preset], federation.labels, federation.sites
    if len(sites) == 1 or not each <= len(labels) <= each * len(sites):
        msg = (
            f"preset '{preset}' deals {each} labels to each of several sites, so that each label is "
            f"marked somewhere, but '{source}' has {len(labels)} label{'s' * (len(labels) > 1)} and "
            f"{len(sites)} site{'s' * (len(sites) > 1)}; choose the labels yourself, with --labels "
            "A,B,C or as `annotates` in a federation.toml"
        )
        raise UsageError(msg)
    return deal_labels(labels, sites, each, stream(seed, "label sets"))


def _check_exclusive(preset: str, federation: Federation, source: str) -> None:
    """Refuse a preset for labels that exclude each other where they do not, and the reverse."""
    if federation.task == "segmentation":
        return
    kinds = {r.exclusive for r in PRESETS[preset] if r.form is Supervision.IMAGE}
    if kinds <= {federation.exclusive}:
        return
    words = {True: "exclude each other", False: "may occur together"}
    other = preset.removesuffix("-exclusive") if kinds == {True} else f"{preset}-exclusive"
    paired = other in PRESETS and other != preset
    msg = (
        f"preset '{preset}' is for labels that {words[not federation.exclusive]}, but those of "
        f"'{source}' {words[federation.exclusive]}; use {f'--preset {other}' if paired else '--form image'}"
    )
    raise UsageError(msg)
