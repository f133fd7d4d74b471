"""The same work under other frameworks, each in an environment of its own; see `run.py`."""
