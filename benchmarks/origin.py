"""Where numbers come from: command, versions, commit and kind of machine."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import shlex
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.cells import Cell

PACKAGES = ("avalanche-dlcpa", "avalanche-lib", "torch", "torchvision", "numpy", "solo-learn")
ROOT = Path(__file__).resolve().parents[1]
DECISIVE = ("avalanche_dlcpa", "benchmarks/*.py", "benchmarks/results/hyperparameters.json")


def provenance(cell: Cell, device: str) -> dict[str, Any]:
    """Where the numbers of a cell come from: command, versions, commit and kind of machine."""
    return origin_of(["python", "-m", "benchmarks.run", *cell.words], device)


def origin_of(command: list[str], device: str) -> dict[str, Any]:
    """Where the numbers of a command come from: versions, commit and kind of machine."""
    return {
        "command": shlex.join(command),
        "versions": {name: version_of(name) for name in PACKAGES},
        "python": platform.python_version(),
        "commit": commit(),
        "device": device,
        **({"gpu": torch.cuda.get_device_name(device)} if device.startswith("cuda") else {}),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def processor() -> str:
    """Kind, name where the system tells it, and vector instructions, on which rounding depends."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    name = next((line.partition(":")[2] for line in lines if line.startswith("model name")), "")
    words = [platform.machine(), *name.split(), torch.backends.cpu.get_cpu_capability()]
    return " ".join(words)


def version_of(distribution: str) -> str:
    """Of an installed package; of one that runs from its checkout alone, "not installed"."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def commit() -> str:
    """The commit, with a plus where code or chosen hyperparameters differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], capture_output=True, text=True, check=True, cwd=ROOT
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", *DECISIVE)
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def digest_of(*folders: Path, values: Mapping[str, Any] | None = None) -> str:
    """The same name for the same code, commit or not, and the same values.

    Args:
        folders: Whose Python files, at any depth, are the code.
        values: As JSON takes them.
    """
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode())
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
