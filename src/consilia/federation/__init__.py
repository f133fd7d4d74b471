"""A real federation: the coordinator and the hospitals, their keys, invitations and processes."""
