"""A run: its spec, its plan and its folder."""
