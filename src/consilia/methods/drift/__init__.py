"""Baselines that average models, differing in how they hold drift down."""
