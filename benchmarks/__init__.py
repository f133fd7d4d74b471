"""Benchmarks: every figure is a ratio in one run."""
