"""Small, boring networks, shared by all methods; each keeps its last layer apart, as `head`."""
