"""The random states of Python, NumPy and torch as plain data, to draw on where one stopped."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def random_states(device: torch.device) -> dict[str, Any]:
    """All global random states: Python, NumPy, torch on the CPU and on a CUDA device.

    Generators that a user's own code holds are not among them.

    Args:
        device: Where the strategy trains.

    Returns:
        Plain numbers, lists and tensors.
    """
    version, words, gauss = random.getstate()
    numpy = np.random.get_state(legacy=False)
    assert isinstance(numpy, dict)
    keys, position = numpy["state"]["key"], numpy["state"]["pos"]
    return {
        "python": [version, list(words), gauss],
        "numpy": [
            torch.from_numpy(keys.astype(np.int64)),
            int(position),
            int(numpy["has_gauss"]),
            float(numpy["gauss"]),
        ],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def set_random_states(states: dict[str, Any], device: torch.device) -> None:
    """Put random states back that `random_states` told.

    Args:
        states: What it returned.
        device: Where the strategy trains; its state is left alone if they are of a CPU.

    Example:
        >>> states = random_states(torch.device("cpu"))
        >>> first = torch.rand(3)
        >>> set_random_states(states, torch.device("cpu"))
        >>> torch.equal(torch.rand(3), first)
        True
    """
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"], device)
