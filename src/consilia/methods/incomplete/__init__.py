"""Methods for sites whose annotations miss objects."""
