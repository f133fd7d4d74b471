"""Full labels -> weak labels: drawn (random, recorded), then rendered (exact)."""

from consilia.weaken.block import Block, draw_background_block, draw_block, render_block
from consilia.weaken.box import Box, draw_box, render_box
from consilia.weaken.convert import Conversion, convert_boxes, draw_conversion
from consilia.weaken.drop_labels import FEDPSL_A, FEDPSL_B, deal_labels, hide_labels
from consilia.weaken.drop_objects import (
    KeptObjects,
    draw_kept_objects,
    objects_kept,
    render_kept_objects,
)
from consilia.weaken.image_tag import ImageTag, draw_image_tag, render_image_tag
from consilia.weaken.point import Points, draw_background_points, draw_points, render_points
from consilia.weaken.presets import DEALT, PRESETS, fedia_lung, fedia_ms
from consilia.weaken.recipe import Provenance, Recipe, recipe_for
from consilia.weaken.rotated_box import RotatedBox, draw_rotated_box, render_rotated_box
from consilia.weaken.scribble import (
    Scribble,
    draw_background_scribble,
    draw_scribble,
    render_scribble,
)
from consilia.weaken.site import replay, weaken, weaken_by

__all__ = [
    "DEALT",
    "FEDPSL_A",
    "FEDPSL_B",
    "PRESETS",
    "Block",
    "Box",
    "Conversion",
    "ImageTag",
    "KeptObjects",
    "Points",
    "Provenance",
    "Recipe",
    "RotatedBox",
    "Scribble",
    "convert_boxes",
    "deal_labels",
    "draw_background_block",
    "draw_background_points",
    "draw_background_scribble",
    "draw_block",
    "draw_box",
    "draw_conversion",
    "draw_image_tag",
    "draw_kept_objects",
    "draw_points",
    "draw_rotated_box",
    "draw_scribble",
    "fedia_lung",
    "fedia_ms",
    "hide_labels",
    "objects_kept",
    "recipe_for",
    "render_block",
    "render_box",
    "render_image_tag",
    "render_kept_objects",
    "render_points",
    "render_rotated_box",
    "render_scribble",
    "replay",
    "weaken",
    "weaken_by",
]
