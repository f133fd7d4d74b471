"""Bounds: what a site reaches alone, and what all would reach together."""
