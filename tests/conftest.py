import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NO_COLOR", "1")

import pytest
import torch
from jaxtyping import install_import_hook

# Shapes written in signatures are checked while testing.
install_import_hook("consilia.ops", "beartype.beartype")

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
