"""Any annotation becomes (target, known, constraint)."""

from consilia.labels.view import LabelView, labels_known, unite

__all__ = ["LabelView", "labels_known", "unite"]
