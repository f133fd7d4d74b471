"""Federated learning for medical imaging when hospitals' annotations differ."""

__version__ = "0.1.0"
__all__ = ["__version__"]
