"""One run: a method in a setting with a seed -> one JSON, written whole or not at all.

python -m benchmarks.run --method dlcpa-mocov2 --setting digits --seed 0 --out results

A run of DLCPA keeps checkpoints beside its result: killed and started again it goes on, to the same
numbers.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import avalanche_dlcpa
from avalanche_dlcpa import DLCPAStrategy, NonFiniteLossError, seed_everything
from avalanche_dlcpa.folder_lock import lock_folder
from benchmarks.analyses import ANALYSES
from benchmarks.cells import (
    FORMAT,
    Cell,
    Result,
    checkpoints_path,
    parse_changes,
    result_path,
    result_there,
)
from benchmarks.hyperparameters import HyperparameterError
from benchmarks.memory import reset_peak
from benchmarks.names import COUNT, SEED
from benchmarks.origin import digest_of, provenance
from benchmarks.settings import SETTINGS
from benchmarks.training import Training
from benchmarks.whole_files import expect_writable, save_json

CODE = (Path(avalanche_dlcpa.__file__).parent, Path(__file__).parent)
CHECKPOINT_MINUTES = 2.0  # besides those between experiences


def run_cell(
    cell: Cell,
    *,
    dataset_root: str | None = None,
    device: str = "cpu",
    on_experience: Callable[[int, int], None] = lambda learned, resumed: None,
    checkpoints: Path | None = None,
    hyperparameters: dict[str, Any] | None = None,
) -> Result:
    """Train and evaluate one cell.

    Args:
        cell: What to run.
        dataset_root: Folder of the data; None: Avalanche's default.
        device: Where to train.
        on_experience: Called with the number of experiences learned, and how many of them an
            earlier life of the run had learned; after each, and at the start where there was one.
        checkpoints: Folder from which a run of DLCPA by this very code with these hyperparameters
            goes on, and where it keeps checkpoints; None: it keeps none.
        hyperparameters: Of the cell; None: as they are chosen here and now.

    Returns:
        The result, as `save_json` writes it.
    """
    # As they are now: a run may outlast a commit, and another choice.
    origin = provenance(cell, device)
    values = cell.hyperparameters if hyperparameters is None else hyperparameters
    reset_peak(device)
    seed_everything(cell.seed)
    if cell.method in ANALYSES:
        found = _analyse(cell, values, dataset_root=dataset_root, device=device)
    else:
        how = {**values, "device": device, "torch": torch.__version__}
        found = _train_and_judge(
            cell,
            values,
            dataset_root=dataset_root,
            device=device,
            on_experience=on_experience,
            checkpoints=checkpoints and checkpoints / digest_of(*CODE, values=how),
        )
    return result_of(cell, values, found, origin)


def _analyse(
    cell: Cell, hyperparameters: dict[str, Any], *, dataset_root: str | None, device: str
) -> dict[str, Any]:
    where = {"dataset_root": dataset_root, "device": device}
    try:
        return ANALYSES[cell.method].run(
            SETTINGS[cell.setting], seed=cell.seed, **where, **hyperparameters
        )
    except TypeError as error:
        # The second: one that the analysis gives STL itself, such as the seed.
        words = r"(?:unexpected keyword|multiple values for(?: keyword)?) argument\W+(\w+)"
        unknown = re.search(words, str(error))
        if unknown is None:
            raise
        raise HyperparameterError(
            f"Expected hyperparameters that {cell.method} or STL has, got {unknown[1]}."
        ) from error


def result_of(
    cell: Cell, hyperparameters: dict[str, Any], found: dict[str, Any], origin: dict[str, Any]
) -> Result:
    """A result as `save_json` writes it: what was run, what was found, and where it comes from."""
    setting = SETTINGS[cell.setting]
    return {
        "format": FORMAT,
        "method": cell.method,
        "setting": cell.setting,
        "setting_title": setting.title,
        "seed": cell.seed,
        "changes": dict(cell.changes),
        "hyperparameters": hyperparameters,
        "epochs": setting.epochs,
        "batch_size": cell.batch_size,
        "num_experiences": cell.num_experiences,
        "views": setting.views,
        **found,
        "provenance": origin,
    }


def _train_and_judge(
    cell: Cell,
    hyperparameters: dict[str, Any],
    *,
    dataset_root: str | None,
    device: str,
    on_experience: Callable[[int, int], None],
    checkpoints: Path | None,
) -> Result:
    training = Training(cell, hyperparameters, dataset_root=dataset_root, device=device)
    strategy, setting = training.strategy, SETTINGS[cell.setting]
    before = 0
    if checkpoints is not None and isinstance(strategy, DLCPAStrategy):
        before = strategy.resume(
            checkpoints, every_epochs=setting.epochs, every_minutes=CHECKPOINT_MINUTES
        )
    if before:
        on_experience(before, before)
    for learned in training.steps():
        if learned > before:
            on_experience(learned, before)
    return training.found()


def remove_checkpoints(cell: Cell, folder: Path) -> None:
    """Remove what a run would have gone on from, now that its result is written."""
    shutil.rmtree(checkpoints_path(cell, folder), ignore_errors=True)


def _remove_empty(checkpoints: Path) -> None:
    """Remove a folder without checkpoints, which was only locked."""
    if not any(path.is_dir() for path in checkpoints.glob("*")):
        shutil.rmtree(checkpoints, ignore_errors=True)


def _device(word: str) -> str:
    """What argparse reads a device with."""
    try:
        torch.device(word)
    except RuntimeError:
        raise argparse.ArgumentTypeError(
            f"Expected a device as torch names it, such as cpu or cuda:0, got {word}."
        ) from None
    return word


def _expect_device(device: str) -> None:
    """Refuse a device that this machine does not have.

    Raises:
        ValueError: It tells what there is.
    """
    try:
        torch.empty(0, device=device)
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"Expected a device of this machine, got {device}: {reason}") from error


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that single runs and grids share."""
    parser.add_argument("--dataset-root", help="folder of data already on disk")
    parser.add_argument("--device", type=_device, default="cpu", help="such as cpu or cuda:0")
    parser.add_argument(
        "--threads", type=COUNT, default=1, help="of torch; small networks gain nothing from more"
    )


def _say(learned: int, resumed: int) -> None:
    """What `benchmarks.pool` reads."""
    before = f", {resumed} of them before" if resumed else ""
    print(f"learned {learned} experiences{before}", flush=True)


def _is_there(cell: Cell, folder: Path) -> bool:
    """Whether the result of a run is there, which then needs no checkpoints."""
    if result_there(cell, folder) is None:
        return False
    print(f"{result_path(cell, folder)} is there already")
    remove_checkpoints(cell, folder)
    return True


def main() -> None:
    """Run one cell from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--method", required=True)
    parser.add_argument("--setting", required=True)
    parser.add_argument("--seed", type=SEED, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="changes")
    parser.add_argument("--ssl", help="give a baseline this self-supervised loss")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument(
        "--validation",
        action="store_true",
        help="a trial: hold out the validation split and judge on it",
    )
    parser.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep checkpoints until the result is written, and go on from the last (DLCPA)",
    )
    add_run_arguments(parser)
    words = parser.parse_args()
    # Avalanche 0.6.0 on a current numpy and torch warns of what will be removed one day.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    torch.set_num_threads(words.threads)
    try:
        changes = parse_changes([*words.changes, *([f"ssl={words.ssl}"] if words.ssl else [])])
        pairs = tuple(sorted(changes.items()))
        cell = Cell(words.method, words.setting, words.seed, pairs, words.validation)
        cell.expect_values()
        checkpoints = checkpoints_path(cell, words.out)
        if _is_there(cell, words.out):
            return
        _expect_device(words.device)
        expect_writable(words.out)
        lock = lock_folder(checkpoints)  # for as long as this process lives
        if _is_there(cell, words.out):  # written by another process since
            return
    except (ValueError, OSError) as error:
        parser.error(str(error))
    try:
        result = run_cell(
            cell,
            dataset_root=words.dataset_root,
            device=words.device,
            checkpoints=checkpoints if words.resume else None,
            on_experience=_say,
        )
        print(f"wrote {save_json(result, result_path(cell, words.out))}")
    # Missing data, a hyperparameter that does not suit, or it diverged; with a full disk, what has
    # checkpoints goes on from its last one.
    except (HyperparameterError, NonFiniteLossError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    finally:
        _remove_empty(checkpoints)
    remove_checkpoints(cell, words.out)
    del lock


if __name__ == "__main__":
    main()
