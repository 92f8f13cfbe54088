"""Small learnable streams, models and state snapshots that the tests share."""

import numpy as np
import torch
from avalanche.benchmarks import (
    class_incremental_benchmark,
    dataset_benchmark,
    nc_benchmark,
    tensors_benchmark,
)
from avalanche.benchmarks.utils import AvalancheDataset, as_classification_dataset
from avalanche.benchmarks.utils.utils import make_avalanche_dataset  # noqa: F401
