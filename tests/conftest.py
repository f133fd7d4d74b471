import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NO_COLOR", "1")

import pytest
import torch
from jaxtyping import install_import_hook

# Without a GPU Triton's interpreter runs our kernels. Triton reads this when it is imported, which parts
# of PyTorch do, so it is said before any test can.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Shapes written in signatures are checked while testing.
install_import_hook("consilia.ops", "beartype.beartype")

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
