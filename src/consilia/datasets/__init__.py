"""Datasets: cases on disk or drawn on the fly, each with a card."""
