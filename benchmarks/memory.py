"""Memory of a method: what it carries from task to task, and the most that a run needed."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import resource
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from avalanche_dlcpa.run_record import RunRecord

_SKIPPED = (
    *(types.ModuleType, type, types.FrameType, types.FunctionType, Dataset, str, bytes),
    RunRecord,  # of a run with checkpoints, and not of its method
)

_SAMPLES = ("memory_x", "x_memory")  # GEM's and iCaRL's names


def kept_bytes(strategy: Any) -> int:
    """Bytes of all tensors that a strategy holds: weights, buffers, importances, teachers, ...

    So are those that a plugin writes anew in each iteration and does not let go, such as GEM's
    gradients of all tasks.

    The samples of a buffer are left out, whether they are references into a data set (replay, DER,
    A-GEM) or tensors (GEM, iCaRL): they are counted in samples (`BUFFER_SIZE`).
    """
    samples = [
        getattr(holder, name)
        for holder in (strategy, *strategy.plugins)
        for name in _SAMPLES
        if hasattr(holder, name)
    ]
    seen = {id(one) for one in samples}
    storages: dict[int, int] = {}
    alive, stack = [], [strategy]
    while stack:
        node = stack.pop()
        if id(node) in seen or isinstance(node, _SKIPPED):
            continue
        seen.add(id(node))
        alive.append(node)  # so that no id is used twice
        if isinstance(node, torch.Tensor):
            storage = node.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        stack.extend(gc.get_referents(node))
    return sum(storages.values())


def reset_peak(device: str) -> None:
    """Let `peak_bytes` start anew; on a CPU only where Linux allows it.

    What was freed goes back to the system first: else it would count for whatever comes next.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.init()  # else there are no statistics to reset
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: str) -> int:
    """The most memory that this process had so far: of the GPU, or resident on a CPU."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():  # where `getrusage` has the peak of the process that started this one
        found = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.MULTILINE)
        if found is not None:
            return 1024 * int(found[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
