"""Methods for sites whose label sets differ."""
