"""Kill a run of DLCPA again and again, and see whether it ends with the bits of an undisturbed one.

    python -m benchmarks.soak [--kills 20] [--epochs 6] [--out benchmarks/results]   (make soak)

The run, DLCPA with MoCoV2 on digits, is a process of its own that says what it is about to do. It
is killed (SIGKILL) in a step, while it writes a checkpoint, while it evaluates and between
experiences, in turn, at a random one of these moments, and started again each time.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins import EvaluationPlugin
from torch.optim import SGD
from torch.optim.lr_scheduler import MultiStepLR

from avalanche_dlcpa import DLCPAStrategy, seed_everything
from avalanche_dlcpa.metrics import scenario_metrics
from avalanche_dlcpa.self_supervised import MoCoV2
from avalanche_dlcpa.streams import split_digits
from benchmarks.cells import Cell
from benchmarks.networks import ThreeLayerCNN
from benchmarks.origin import ROOT, provenance
from benchmarks.views import ShiftsAndNoise
from benchmarks.whole_files import save_json

PHASES = ("step", "write", "eval", "between")
STEPS_A_TASK = 9  # and epoch


class _Announcer(SupervisedPlugin):
    """Says on the standard output what comes next, a word a line."""

    has_evaluated = False

    def after_forward(self, strategy: Any, **kwargs: Any) -> None:
        _say("step")

    def before_eval_iteration(self, strategy: Any, **kwargs: Any) -> None:
        self.has_evaluated = True
        _say("eval")


def _say(word: str) -> None:
    os.write(1, f"{word}\n".encode())


def life(folder: Path, *, epochs: int, num_tasks: int, num_workers: int, disturbed: bool) -> None:
    """One life of the run: from its last checkpoint to the end, if nobody ends it before."""
    seed_everything(0)
    stream = split_digits(5)
    model = ThreeLayerCNN(10, width=8)
    scenarios, announcer = scenario_metrics(), _Announcer()
    strategy = DLCPAStrategy(
        model=model,
        optimizer=SGD(model.parameters(), lr=0.02, momentum=0.9),
        ssl=MoCoV2(queue_size=256),
        scheduler=lambda optimizer: MultiStepLR(optimizer, [max(1, epochs - 1)]),
        views=ShiftsAndNoise(),
        train_mb_size=32,
        train_epochs=epochs,
        eval_mb_size=64,
        plugins=[announcer],
        evaluator=EvaluationPlugin(*scenarios, loggers=[]),
        image_cache_bytes=0 if num_workers else math.inf,  # images in memory leave workers idle
    )
    if disturbed:
        strategy.resume(folder / "checkpoints", every_minutes=0)
        _announce_writes(strategy)
    for experience in stream.train_stream[:num_tasks]:
        strategy.train(experience, num_workers=num_workers)
        strategy.eval(stream.test_stream[: experience.current_experience + 1])
        if announcer.has_evaluated:  # else these calls have only been passed over
            _say("between")
    assert strategy.ssl is not None
    end = {
        "weights": {**strategy.model.state_dict(), **strategy.ssl.state_dict()},
        "matrices": [torch.from_numpy(metric.matrix()) for metric in scenarios],
        "clock": vars(strategy.clock),
    }
    torch.save(end, folder / "end.pt")


def _announce_writes(strategy: DLCPAStrategy) -> None:
    assert strategy._run is not None
    folder = strategy._run.folder
    write = folder.write

    def announced(state: dict[str, Any]) -> Any:
        _say("write")
        return write(state)

    folder.write = announced  # type: ignore[method-assign]


def start_process(folder: Path, words: list[str]) -> subprocess.Popen[bytes]:
    """Start a life in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.soak", "--life", str(folder)]
    return subprocess.Popen([*command, *words], stdout=subprocess.PIPE, cwd=ROOT)


def _kill_at(process: Any, phase: str, to_pass: int, chance: random.Random) -> bool:
    """Kill a life just after it has said a word so often; whether it lived so long."""
    for line in process.stdout:
        to_pass -= line.decode().strip() == phase
        if to_pass == 0:
            time.sleep(chance.uniform(0, 0.01))
            was_alive = process.poll() is None
            process.kill()
            process.wait()
            return was_alive
    return False


def soak(
    *,
    kills: int,
    epochs: int,
    num_tasks: int = 5,
    num_workers: int = 0,
    seed: int = 0,
    start: Callable[[Path, list[str]], Any] = start_process,
) -> dict[str, Any]:
    """Kill and restart a run, and compare its end with that of an undisturbed one.

    Args:
        kills: How often.
        epochs: An experience.
        num_tasks: How many experiences are learned.
        num_workers: Of the loader.
        seed: Of the moments.
        start: Starts a life, which answers as a `subprocess.Popen` with a pipe does.

    Returns:
        How often it was killed in which phase, in how many of them it left a checkpoint half
        written, and whether both ends are the same to the bit.

    Raises:
        RuntimeError: A life failed, other than by a kill.
    """
    words = ["--epochs", str(epochs), "--tasks", str(num_tasks), "--workers", str(num_workers)]
    # A round of kills shall fit into a task: some steps, writes, its evaluation and its end.
    most = {"step": STEPS_A_TASK * epochs // 3, "write": STEPS_A_TASK * epochs // 3, "eval": 2}
    chance, killed, num_drafts = random.Random(seed), collections.Counter[str](), 0
    with tempfile.TemporaryDirectory() as name:
        whole, folder = Path(name) / "whole", Path(name) / "killed"
        for path in (whole, folder):
            path.mkdir()
        _finish(start(whole, [*words, "--undisturbed"]))
        for count in range(kills):
            phase = PHASES[count % len(PHASES)]
            to_pass = chance.randint(1, most.get(phase, 1))
            if _kill_at(start(folder, words), phase, to_pass, chance):
                killed[phase] += 1
                num_drafts += any((folder / "checkpoints").glob(".checkpoint-*"))
        _finish(start(folder, words))
        ends = [torch.load(path / "end.pt", weights_only=True) for path in (whole, folder)]
    return {
        "kills": dict(killed),
        "half_written_checkpoints": num_drafts,
        "identical": _same(*ends),
        "iterations": ends[1]["clock"]["train_iterations"],
    }


def _finish(process: Any) -> None:
    process.communicate()
    if process.returncode:
        raise RuntimeError(f"Expected the run to end well, got code {process.returncode}.")


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and np.array_equal(
            a.numpy(), b.numpy(), equal_nan=a.is_floating_point()
        )
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return a == b


def main(arguments: list[str] | None = None) -> None:
    """Soak, print what came out and write it; ends with 1 where the bits differ."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0, help="of the loader")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--life", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--undisturbed", action="store_true", help=argparse.SUPPRESS)
    words = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    options = {"epochs": words.epochs, "num_tasks": words.tasks, "num_workers": words.workers}
    if words.life:
        life(words.life, disturbed=not words.undisturbed, **options)
        return
    start = time.perf_counter()
    found = soak(kills=words.kills, seed=words.seed, **options)
    origin = provenance(Cell("dlcpa-mocov2", "digits", words.seed), "cpu")
    origin["command"] = (
        f"python -m benchmarks.soak --kills {words.kills} --epochs {words.epochs} "
        f"--tasks {words.tasks} --workers {words.workers} --seed {words.seed}"
    )
    seconds = time.perf_counter() - start
    report = {**found, **options, "seconds": round(seconds), "provenance": origin}
    print(json.dumps(report, indent=1))
    print(f"wrote {save_json(report, words.out / 'soak.json')}")
    if not found["identical"]:
        sys.exit("The killed run ended with other bits than the undisturbed one.")
    if sum(found["kills"].values()) < words.kills:
        sys.exit("The run ended before it was killed so often: give it more epochs.")


if __name__ == "__main__":
    main()
