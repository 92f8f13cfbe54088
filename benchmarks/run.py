"""One run: a method in a setting with a seed -> one JSON, written whole or not at all.

python -m benchmarks.run --method dlcpa-mocov2 --setting digits --seed 0 --out demo-results
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from avalanche.training.determinism.rng_manager import RNGManager
from avalanche.training.plugins import EvaluationPlugin

from avalanche_dlcpa.accuracy_matrix import (
    accuracy_over_experiences,
    average_incremental_accuracy,
    backward_transfer,
    final_accuracy,
    forgetting,
)
from avalanche_dlcpa.metrics import scenario_metrics
from benchmarks.hyperparameters import HYPERPARAMETERS
from benchmarks.methods import METHODS
from benchmarks.settings import SETTINGS

PACKAGES = ("avalanche-dlcpa", "avalanche-lib", "torch", "torchvision", "numpy", "solo-learn")
FORMAT = 1  # of the JSON
ROOT = Path(__file__).resolve().parents[1]


def run_cell(
    method: str,
    setting: str,
    seed: int,
    *,
    hyperparameters: dict[str, Any] | None = None,
    validation: bool = False,
    num_experiences: int | None = None,
    dataset_root: str | None = None,
    device: str = "cpu",
    on_experience: Callable[[int], None] = lambda learned: None,
) -> dict[str, Any]:
    """Train and evaluate one method.

    Args:
        method: A name of `METHODS`.
        setting: A name of `SETTINGS`.
        seed: Of network, order of samples and views; the stream does not depend on it.
        hyperparameters: In the place of those in `HYPERPARAMETERS`.
        validation: Whether the 10 % validation split is held out and evaluated, and the test set
            left alone: for the choice of hyperparameters.
        num_experiences: Learn only so many; None: as the setting says.
        dataset_root: Folder of the data; None: Avalanche's default.
        device: Where to train.
        on_experience: Called with the number of experiences learned, after each.

    Returns:
        The result, as `save_result` writes it.
    """
    origin = provenance(device)  # of the code as it is now: a run may outlast a commit
    chosen, plan = METHODS[method], SETTINGS[setting]
    if hyperparameters is None:
        hyperparameters = HYPERPARAMETERS[setting][method]
    stream = plan.make_stream(
        augment=not chosen.draws_views,
        validation_fraction=0.1 if validation else 0.0,
        dataset_root=dataset_root,
    )
    RNGManager.set_random_seeds(seed)
    class_il, task_il = scenario_metrics()
    views = {"views": plan.make_views()} if chosen.draws_views else {}
    strategy = chosen.build(
        plan.make_network(plan.num_classes),
        **hyperparameters,
        **views,
        train_mb_size=plan.batch_size,
        train_epochs=plan.epochs,
        eval_mb_size=256,
        device=device,
        evaluator=EvaluationPlugin(class_il, task_il, loggers=[_Silent()]),
    )
    num_experiences = num_experiences or plan.num_experiences
    judged = stream.valid_stream if validation else stream.test_stream
    seconds = 0.0
    for learned, experience in enumerate(stream.train_stream[:num_experiences], start=1):
        start = time.perf_counter()
        strategy.train(experience, eval_streams=[])
        seconds += time.perf_counter() - start
        strategy.eval(judged[:learned])
        on_experience(learned)
    name = "valid_stream" if validation else "test_stream"
    return {
        "format": FORMAT,
        "method": method,
        "setting": setting,
        "seed": seed,
        "judged_on": name,
        "hyperparameters": hyperparameters,
        "epochs": plan.epochs,
        "batch_size": plan.batch_size,
        "num_experiences": num_experiences,
        "class_il": _summary(class_il.matrix(name)),
        "task_il": _summary(task_il.matrix(name)),
        "training_seconds": seconds,
        "provenance": origin,
    }


class _Silent:
    """A logger that says nothing; Avalanche warns where there is none."""

    def log_metrics(self, values: Any) -> None:
        """Take the metric values."""


def _summary(matrix: np.ndarray) -> dict[str, Any]:
    return {
        "accuracy_matrix": [[None if np.isnan(a) else float(a) for a in row] for row in matrix],
        "ACC": final_accuracy(matrix),
        "AverageIncrementalACC": average_incremental_accuracy(matrix),
        "BWT": backward_transfer(matrix),
        "Forgetting": forgetting(matrix),
        "accuracy_over_experiences": accuracy_over_experiences(matrix).tolist(),
    }


def provenance(device: str) -> dict[str, Any]:
    """Where numbers come from: versions, commit and kind of machine."""
    return {
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "commit": _commit(),
        "device": device,
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _commit() -> str:
    """The commit, with a plus where the code of package or benchmarks differs from it."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], capture_output=True, text=True, check=True, cwd=ROOT
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "avalanche_dlcpa", "benchmarks/*.py")
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def save_result(result: dict[str, Any], folder: Path) -> Path:
    """Write a result to ``folder``, whole or not at all, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['setting']}_{result['method']}_seed{result['seed']}.json"
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with draft.open("w") as file:
            json.dump(result, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def main() -> None:
    """Run one cell from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--method", required=True, choices=METHODS)
    parser.add_argument("--setting", required=True, choices=SETTINGS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--dataset-root", help="folder of data already on disk")
    parser.add_argument("--device", default="cpu")
    words = parser.parse_args()
    result = run_cell(
        words.method,
        words.setting,
        words.seed,
        dataset_root=words.dataset_root,
        device=words.device,
        on_experience=lambda learned: print(f"learned {learned} experiences", flush=True),
    )
    print(f"wrote {save_result(result, words.out)}")


if __name__ == "__main__":
    main()
