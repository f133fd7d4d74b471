"""What carries records: the one round loop, the site half, and the transports."""
