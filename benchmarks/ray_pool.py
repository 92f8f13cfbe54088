"""Run cells on a Ray cluster: one task a cell, results collected in one folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.cells import Cell, Result, result_path
from benchmarks.json_file import save_json
from benchmarks.origin import ROOT, commit
from benchmarks.pool import Progress
from benchmarks.run import run_cell

try:
    import ray
except ImportError as error:
    raise ImportError(
        'Expected Ray for --ray; install it with `pip install "ray>=2.9"`, or run on this machine '
        "with --jobs."
    ) from error

RETRIES = 3  # of a cell whose worker has died
POLL_SECONDS = 1.0
# As in a .gitignore. The chosen hyperparameters, in benchmarks/results, have to go along.
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
) -> Iterator[list[Progress]]:
    """Run cells as tasks of a Ray cluster; the counterpart of `pool.run_in_processes`.

    A cell whose worker dies is run again, elsewhere if need be. The code of this checkout goes with
    the tasks; the packages it needs and the data must be on every machine.

    Args:
        cells: What to run.
        folder: Of this machine, where the results go.
        address: Of the cluster, "auto" for that which this machine belongs to, or "local" for a new
            one on this machine alone.
        gpus: Of a GPU, for each cell; 0 on CPUs.
        threads: Of torch, for each cell, and so many CPUs.
        dataset_root: Folder of the data on every machine; None: Avalanche's default.
        device: Where to train.

    Yields:
        Which cells are not done; one that has ended is in it a last time.
    """
    origin = commit()  # of the code that is sent: the run may outlast it here
    if not ray.is_initialized():
        ray.init(
            address=address,
            runtime_env={"working_dir": str(ROOT), "excludes": NOT_SENT},
            log_to_driver=False,
        )
    task = ray.remote(max_retries=RETRIES, num_cpus=threads, num_gpus=gpus)(_run)
    options = {"threads": threads, "dataset_root": dataset_root, "device": device}
    at_work = {task.remote(cell, **options): cell for cell in cells}
    try:
        while at_work:
            ended, _ = ray.wait(list(at_work), timeout=POLL_SECONDS)
            reports = [_collect(handle, at_work.pop(handle), folder, origin) for handle in ended]
            yield [*reports, *(Progress(cell, 0) for cell in at_work.values())]
    finally:
        for handle in at_work:
            ray.cancel(handle, force=True)


def _run(cell: Cell, *, threads: int, **options: Any) -> Result:
    import torch

    torch.set_num_threads(threads)
    return run_cell(cell, **options)


def _collect(handle: Any, cell: Cell, folder: Path, origin: str) -> Progress:
    try:
        result = ray.get(handle)
        result["provenance"]["commit"] = origin  # the code came from here, without its history
        save_json(result, result_path(cell, folder))
    except (ray.exceptions.RayError, OSError, ValueError) as error:  # the last: NaN is no JSON
        reason = str(error).strip().splitlines()[-1]
        return Progress(cell, 0, ended=True, failure=reason)
    return Progress(cell, cell.num_experiences, ended=True)
