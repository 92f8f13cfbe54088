"""Run cells on a Ray cluster: one task a cell, results collected in one folder."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from benchmarks.cells import (
    Cell,
    Result,
    check_same,
    checkpoints_path,
    read_result,
    result_path,
)
from benchmarks.origin import ROOT, commit
from benchmarks.pool import Progress
from benchmarks.run import remove_checkpoints, run_cell
from benchmarks.whole_files import save_json

try:
    import ray
except ImportError as error:
    raise ImportError(
        'Expected Ray for --ray; install it with `pip install "ray>=2.9"`, or run on this machine '
        "with --jobs."
    ) from error

RETRIES = 3  # of a cell whose worker has died
POLL_SECONDS = 1.0
# As in a .gitignore.
NOT_SENT = [
    ".git",
    ".venv*",
    "/tests",
    "/benchmarks/results/*_seed*.json",
    "/demo-results",
    "/results",
]


def run_on_ray(
    cells: list[Cell],
    folder: Path,
    *,
    address: str,
    gpus: float,
    threads: int,
    dataset_root: str | None,
    device: str,
    checkpoints: Path | None = None,
) -> Generator[list[Progress], None, None]:
    """Run cells as tasks of a Ray cluster; the counterpart of `pool.run_in_processes`.

    A cell whose worker dies is run again, elsewhere if need be; one of DLCPA goes on where it was,
    if there is a folder for checkpoints. The code of this checkout goes with the tasks; packages
    that it needs and the data must be on every machine.

    Args:
        cells: What to run.
        folder: Of this machine, where the results go.
        address: Of the cluster, "auto" for that which this machine belongs to, or "local" for a new
            one on this machine alone.
        gpus: Of a GPU, for each cell; 0 on CPUs.
        threads: Of torch, for each cell, and so many CPUs.
        dataset_root: Folder of the data on every machine; None: Avalanche's default.
        device: Where to train.
        checkpoints: Folder on a file system that all machines share; None: none are kept.

    Yields:
        How far those at work are, again and again; one that has ended is in it a last time.

    Raises:
        ValueError: There is no cluster at that address, or this machine has not what a cell takes.
    """
    origin = commit()  # of the code that is sent: the run may outlast it here
    _connect(address)
    _expect_machine(gpus=gpus, threads=threads, is_local=address == "local")
    board: Any = ray.remote(num_cpus=0, max_restarts=-1)(_Board).remote()
    _read(board)  # it is there before the cells tell it anything
    run: Any = _run  # whose words Ray's types do not know
    task = ray.remote(max_retries=RETRIES, num_cpus=threads, num_gpus=gpus)(run)
    options = {"threads": threads, "dataset_root": dataset_root, "device": device}
    at_work = {}
    for cell in cells:
        own = checkpoints and checkpoints_path(cell, checkpoints)
        # Those chosen here and now: the code was sent before a choice that this process has made.
        values = cell.hyperparameters
        handle = task.remote(cell, board, checkpoints=own, hyperparameters=values, **options)
        at_work[handle] = cell
    try:
        while at_work:
            ended, _ = ray.wait(list(at_work), num_returns=len(at_work), timeout=POLL_SECONDS)
            reports = [_collect(handle, at_work.pop(handle), folder, origin) for handle in ended]
            for report in reports:
                if checkpoints is not None and report.failure is None:
                    remove_checkpoints(report.cell, checkpoints)
            told = _read(board)
            yield [*reports, *(told[cell] for cell in at_work.values() if cell in told)]
    finally:
        for handle in at_work:
            ray.cancel(handle, force=True)
        ray.kill(board)


class _Board:
    """An actor that cells tell how far they are."""

    def __init__(self) -> None:
        self._told: dict[Cell, Progress] = {}

    def tell(self, progress: Progress) -> None:
        """Take the progress of a cell."""
        self._told[progress.cell] = progress

    def read(self) -> dict[Cell, Progress]:
        """The progress of all cells that have begun."""
        return self._told


def _read(board: Any) -> dict[Cell, Progress]:
    try:
        return ray.get(board.read.remote())
    except ray.exceptions.RayError:  # its machine has died; it starts again elsewhere
        return {}


def _connect(address: str) -> None:
    """Join the cluster, unless this process is in one already."""
    if ray.is_initialized():
        return
    code = {"working_dir": str(ROOT), "excludes": NOT_SENT}
    try:
        ray.init(address=address, runtime_env=code, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"Expected --ray to be the address of a Ray cluster that is running, or 'local', got "
            f"'{address}': {_last_line(error)}"
        ) from error


def _expect_machine(*, gpus: float, threads: int, is_local: bool) -> None:
    """Say where no machine of the cluster has what a cell takes, for which it would wait."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(m.get("GPU", 0) >= gpus and m.get("CPU", 0) >= threads for m in machines):
        return
    words = (
        f"Expected a machine with {gpus:g} GPUs and {threads} CPUs for each cell, got "
        f"{len(machines)} with at most {max(m.get('GPU', 0) for m in machines):g} and "
        f"{max(m.get('CPU', 0) for m in machines):g}: lower --gpus or --threads"
    )
    if is_local:
        raise ValueError(f"{words}.")
    print(f"{words}, or let such a machine join the cluster: cells wait for it.", file=sys.stderr)


def _run(cell: Cell, board: Any, *, threads: int, **options: Any) -> Result:
    import torch

    torch.set_num_threads(threads)

    def tell(learned: int, resumed: int) -> None:
        board.tell.remote(Progress(cell, learned, resumed))

    tell(0, 0)
    return run_cell(cell, on_experience=tell, **options)


def _collect(handle: Any, cell: Cell, folder: Path, origin: str) -> Progress:
    try:
        result = ray.get(handle)
        result["provenance"]["commit"] = origin  # the code came from here, without its history
        path = result_path(cell, folder)
        if path.exists():  # of another grid that is at work in this folder
            check_same(read_result(path), cell)
        else:
            save_json(result, path)
    except (ray.exceptions.RayError, OSError, ValueError) as error:  # the last: NaN is no JSON
        return Progress(cell, 0, ended=True, failure=_last_line(error))
    return Progress(cell, cell.num_experiences, ended=True)


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]
