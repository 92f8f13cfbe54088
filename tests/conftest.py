import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR100

DATA_VARIABLE = "AVALANCHE_DLCPA_DATA"


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    torch.set_num_threads(1)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of real data, made by `shared/data/unpack.py`, that AVALANCHE_DLCPA_DATA names."""
    name = os.environ.get(DATA_VARIABLE)
    if not name:
        pytest.skip(f"real data wanted: set {DATA_VARIABLE} to a folder made by unpack.py")
    root = Path(name)
    if not root.is_dir():
        pytest.skip(f"real data wanted: {DATA_VARIABLE}={root} is not a folder")
    try:
        CIFAR100(str(root), train=False, download=False)
    except RuntimeError:
        # unpack.py writes the original images in another order, so that the checksums differ
        pytest.skip(
            f"CIFAR-100 in {root} is absent or fails torchvision's checksums: "
            "start pytest with shared/data/offline on PYTHONPATH"
        )
    return root
