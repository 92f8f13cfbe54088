"""Random numbers: one seed for all generators, and their states as plain data to go on from."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from avalanche.training.determinism.rng_manager import RNGManager

MOST_SEED = 2**32 - 1  # of NumPy's generator


def seed_everything(seed: int, *, deterministic: bool = False) -> None:
    """Seed Python, NumPy and torch on the CPU and all CUDA devices, for runs that repeat.

    On a CPU the same seed gives the same bits, on the same machine with the same versions and
    number of threads. On CUDA some of torch's operations add up in any order, and cuDNN may choose
    other algorithms from run to run; ``deterministic=True`` forbids both, at some cost of speed.

    Args:
        seed: From 0 to 2**32 - 1.
        deterministic: Whether to switch torch to deterministic algorithms for the whole process:
            `torch.use_deterministic_algorithms`, cuDNN without its search for the fastest, and
            ``CUBLAS_WORKSPACE_CONFIG=:4096:8`` where it is not set. cuBLAS reads that when it
            starts, so call this before anything runs on a GPU. A model with an operation that has
            no deterministic form, such as the backward pass of adaptive average pooling to more
            than one cell, then raises a RuntimeError that names it. False leaves all of it alone.

    Raises:
        ValueError: ``seed`` out of range.

    Example:
        >>> seed_everything(0)
        >>> first = torch.rand(3)
        >>> seed_everything(0)
        >>> torch.equal(torch.rand(3), first)
        True
    """
    if not 0 <= seed <= MOST_SEED:
        raise ValueError(f"Expected `seed` to be from 0 to {MOST_SEED}, got {seed}.")
    RNGManager.set_random_seeds(seed)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True)


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


def digest_of_states(states: dict[str, Any]) -> str:
    """A word that tells random states from others."""
    digest = hashlib.blake2b(digest_size=8)
    for name in ("python", "numpy", "torch"):
        own = states[name] if isinstance(states[name], list) else [states[name]]
        for part in own:
            is_tensor = isinstance(part, torch.Tensor)
            digest.update(part.numpy().tobytes() if is_tensor else repr(part).encode())
    return digest.hexdigest()


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


@contextlib.contextmanager
def preserved_random_states(device: torch.device) -> Iterator[None]:
    """Within this context random numbers may be drawn that nobody outside it misses.

    Covers Python, NumPy, torch on the CPU and on the given device.
    """
    python, numpy = random.getstate(), np.random.get_state()
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
