"""Methods for sites that differ in the form of their supervision."""
