"""One self-contained page per run, made from the run folder only."""
