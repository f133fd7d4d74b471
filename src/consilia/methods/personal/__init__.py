"""Methods that give each site a model of its own."""
