"""A real federation: the coordinator and the hospitals, their keys, invitations and processes."""

from importlib.util import find_spec

from consilia.errors import UsageError

if find_spec("flwr") is None:
    msg = (
        "a real federation needs Flower; in the checkout, "
        "`pip install -c constraints.txt -e '.[flower]'` installs it"
    )
    raise UsageError(msg)
