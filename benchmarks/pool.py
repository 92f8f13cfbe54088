"""Run cells as processes, several at a time, so that one may die without the others."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path

import psutil
import torch

from benchmarks.cells import Cell
from benchmarks.names import COUNT
from benchmarks.origin import ROOT
from benchmarks.run import add_run_arguments

POLL_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Progress:
    """What a pool reports.

    Attributes:
        cell: Which cell.
        learned: How many experiences it has learned.
        resumed: How many of these an earlier life of the run had learned.
        ended: Whether it has ended.
        failure: Why it failed; None: it did not.
    """

    cell: Cell
    learned: int
    resumed: int = 0
    ended: bool = False
    failure: str | None = None


Runner = Callable[[list[Cell]], Generator[list[Progress], None, None]]


class _Process:
    """A cell at work; its output goes to a log of its own, which stays if it failed."""

    def __init__(self, cell: Cell, folder: Path, options: list[str]):
        self.cell = cell
        self._kept = folder / "logs" / f"{cell.name}.log"
        self._log = self._kept.with_name(f".{cell.name}.{_process_name(os.getpid())}.log")
        self._log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "benchmarks.worker", *cell.words, "--out", str(folder)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *options],
                stdin=subprocess.PIPE,  # closes when this process dies, and ends that one
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
            )

    def progress(self) -> Progress:
        """How far it is."""
        code = self._process.poll()
        try:
            output = self._log.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:  # somebody has tidied up
            output = ""
        said = re.findall(r"^learned (\d+) experiences(?:, (\d+) of them before)?$", output, re.M)
        so_far, resumed = (int(count or 0) for count in (said[-1] if said else (0, 0)))
        so_far_of = functools.partial(Progress, self.cell, so_far, resumed)
        if code is None:
            return so_far_of()
        assert self._process.stdin is not None
        self._process.stdin.close()
        if code == 0:
            self._log.unlink(missing_ok=True)
            self._kept.unlink(missing_ok=True)  # of an earlier try
            return so_far_of(ended=True)
        last = next((line for line in reversed(output.splitlines()) if line.strip()), None)
        if self._log.exists():
            self._log.replace(self._kept)
        reason = f"ended with {code}: {last.strip() if last else _without_output(self._kept)}"
        if code < 0:
            reason = f"killed by {signal.Signals(-code).name} after {so_far} experiences"
        reason += f" (see {_from_here(self._kept)})"
        return so_far_of(ended=True, failure=reason)

    def stop(self) -> None:
        """End it now."""
        self._process.kill()
        self._process.wait()
        self._log.unlink(missing_ok=True)


def _from_here(path: Path) -> Path:
    """The path as it can be opened from where the user is, short where it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _without_output(log: Path) -> str:
    """Why a process may have ended without a word."""
    free = shutil.disk_usage(log.parent).free
    if free < 2**20:
        return f"no output, as the disk of {log.parent.parent} is full ({free} bytes are left)"
    return "no output"


def remove_left_logs(folder: Path) -> None:
    """Remove the logs of cells that were at work when their grid was killed."""
    for log in (folder / "logs").glob(".*.log"):
        process = log.stem.rpartition("-")[2]
        of_here = process.isdecimal() and log.stem.endswith(f".{_process_name(int(process))}")
        if of_here and not psutil.pid_exists(int(process)):
            log.unlink(missing_ok=True)


def _process_name(process: int) -> str:
    """Of a process of this machine, or container: folders may be shared by several."""
    return f"{socket.gethostname()}-{process}"


def run_in_processes(
    cells: Iterable[Cell], folder: Path, *, jobs: int, options: list[str]
) -> Generator[list[Progress], None, None]:
    """Run cells, at most ``jobs`` at a time, each in a process of its own.

    Args:
        cells: What to run, in this order.
        folder: Where results and logs go; absolute.
        jobs: How many at a time.
        options: Further words for `benchmarks.run`.

    Yields:
        How far those at work are, again and again; one that has ended is in it a last time.
    """
    remove_left_logs(folder)
    waiting = list(reversed(list(cells)))
    at_work: list[_Process] = []
    try:
        while waiting or at_work:
            unborn = []
            while waiting and len(at_work) < jobs:
                cell = waiting.pop()
                try:
                    at_work.append(_Process(cell, folder, options))
                except OSError as error:  # no room for its log, no memory for another process
                    if at_work:  # when one of them has ended, it may do
                        waiting.append(cell)
                        break
                    reason = f"{type(error).__name__}: {error}"
                    unborn.append(Progress(cell, 0, ended=True, failure=reason))
            reports = [process.progress() for process in at_work]
            at_work = [p for p, r in zip(at_work, reports, strict=True) if not r.ended]
            yield [*unborn, *reports]
            if at_work:
                time.sleep(POLL_SECONDS)
    finally:
        for process in at_work:
            process.stop()


def _gpus(word: str) -> float:
    """What argparse reads a share of Ray's GPUs with."""
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not (0 <= value <= 1 or (value > 1 and value.is_integer())):
        raise argparse.ArgumentTypeError(
            f"Expected a number from 0 to 1, or a whole one above, got {word}."
        )
    return value


def add_pool_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of all that runs more than one cell."""
    add_run_arguments(parser)
    parser.add_argument("--jobs", type=COUNT, default=1, help="cells at a time on this machine")
    parser.add_argument("--ray", metavar="ADDRESS", help="of a Ray cluster, or 'local'")
    parser.add_argument("--gpus", type=_gpus, default=0.0, help="of Ray's GPUs a cell, e.g. 0.25")
    parser.add_argument(
        "--checkpoints", type=Path, help="folder that all machines of Ray share, for cells that die"
    )


def pool_of(words: argparse.Namespace, folder: Path) -> Runner:
    """What runs cells as the command line says.

    Raises:
        ValueError: Options of the other way to run them.
        ImportError: Ray is asked for and missing.
    """
    if words.ray is None and words.gpus:
        raise ValueError(f"Expected --gpus with --ray alone, got {words.gpus:g}: see --device.")
    if words.ray is None and words.checkpoints:
        raise ValueError(
            f"Expected --checkpoints with --ray alone, got {words.checkpoints}: without, they lie "
            "beside the results."
        )
    if words.ray is not None and torch.device(words.device).type == "cuda" and not words.gpus:
        raise ValueError(
            f"Expected --gpus with --ray and --device {words.device}, got 0, which would put any "
            "number of cells on a GPU: name the part of one that a cell takes, such as 0.25."
        )
    if words.gpus and torch.device(words.device).type == "cpu":
        print(
            f"--gpus {words.gpus:g} with --device {words.device}: cells hold GPUs and do not use "
            "them; --device cuda does.",
            file=sys.stderr,
        )
    if words.ray is not None and words.jobs > 1:
        raise ValueError(
            f"Expected --jobs without --ray, which fills its cluster, got {words.jobs} jobs: leave "
            "one of them out."
        )
    root = words.dataset_root and str(Path(words.dataset_root).absolute())
    if words.ray is not None:
        from benchmarks.ray_pool import run_on_ray  # Ray is an optional extra

        return lambda cells: run_on_ray(
            cells,
            folder,
            address=words.ray,
            gpus=words.gpus,
            threads=words.threads,
            dataset_root=root,
            device=words.device,
            checkpoints=words.checkpoints and words.checkpoints.absolute(),
        )
    options = ["--device", words.device, "--threads", str(words.threads)]
    options += ["--dataset-root", root] if root else []
    return lambda cells: run_in_processes(cells, folder, jobs=words.jobs, options=options)
