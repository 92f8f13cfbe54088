"""Choose hyperparameters on the validation split, never on the test set.

    python -m benchmarks.tune --setting lab-cifar100-10 --methods naive ewc --jobs 2

Optuna goes through the combinations of a method's grid (`benchmarks.grids`), each trained on the
first experiences with the validation split held out. Every trial adds a row to
``benchmarks/results/tuning.csv``; what the file already holds is not run again, and then the best
values are chosen (`benchmarks.trials`).
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna

from avalanche_dlcpa import NonFiniteLossError
from benchmarks.cells import Cell, Result, read_result, result_path
from benchmarks.grids import GRIDS, Grid
from benchmarks.hyperparameters import PUBLISHED
from benchmarks.live import run_grid
from benchmarks.methods import METHODS
from benchmarks.names import COUNT, SEED, expect_known
from benchmarks.origin import commit
from benchmarks.pool import Runner, add_pool_arguments, pool_of
from benchmarks.settings import SETTINGS
from benchmarks.trials import (
    TUNING,
    add_row,
    choose,
    expect_as_many_seeds,
    finalists,
    in_grids,
    read_rows,
)
from benchmarks.whole_files import expect_writable


def propose(grids: list[Grid], *, most: int | None = None) -> list[dict[str, Any]]:
    """Combinations of values that Optuna's grid sampler takes from each grid.

    Args:
        grids: Mappings from a name to its values.
        most: Of each grid, at most so many, drawn at random with a fixed seed; None: all.

    Example:
        >>> propose([{"lr": [0.1], "strength": [1]}, {"lr": [0.3]}])
        [{'lr': 0.1, 'strength': 1}, {'lr': 0.3}]
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    proposals = []
    for grid in grids:
        study = optuna.create_study(sampler=optuna.samplers.GridSampler(grid, seed=0))
        size = math.prod(len(values) for values in grid.values())
        for _ in range(min(size, most or size)):
            trial = study.ask()
            proposals.append({name: trial.suggest_categorical(name, grid[name]) for name in grid})
    return proposals


def _grids_of(setting: str) -> dict[str, list[Grid]]:
    """What is tried in a setting.

    Raises:
        ValueError: An unknown setting, or one that takes the values of another.
    """
    if setting in SETTINGS and setting not in GRIDS:
        source = SETTINGS[setting].tuned_on
        raise ValueError(
            f"Expected a setting with a grid of its own, got '{setting}', which runs with what is "
            f"chosen in {source}: tune that."
        )
    return GRIDS[expect_known("setting with a grid", setting, GRIDS)]


def to_tune(setting: str) -> list[str]:
    """Methods that have a grid in a setting, and no published values there."""
    return [name for name in GRIDS.get(setting, {}) if name not in PUBLISHED.get(setting, {})]


def tune(
    setting: str,
    methods: Iterable[str],
    seeds: Sequence[int],
    run: Runner,
    *,
    folder: Path,
    most: int | None = None,
    num_finalists: int | None = None,
    path: Path = TUNING,
) -> dict[Cell, str]:
    """Run what is missing of the methods' grids, adding each row as soon as it is known.

    Args:
        setting: A name of `GRIDS`.
        methods: Names of its methods.
        seeds: Each combination is tried with each of them.
        run: Runs cells, whose results then lie in ``folder``.
        folder: For results, until they are rows.
        most: See `propose`.
        num_finalists: How many combinations are tried with the seeds after the first, see
            `finalists`; None: all.
        path: The file of rows.

    Returns:
        Why trials failed. Those whose loss was not finite have a row with accuracies of 0; others
        have none, and are run again.
    """
    grids = _grids_of(setting)
    methods = list(methods)
    for method in methods:
        if method in METHODS and method not in grids:
            raise ValueError(
                f"Expected methods with a grid in {setting}, got {method}, which has no grid in "
                "grids.py: add one, or name its hyperparameters with --set of benchmarks.compare."
            )
    wanted = {
        method: propose(grids[expect_known("method", method, grids)], most=most)
        for method in methods
    }
    if num_finalists is None:
        return _try_all(setting, wanted, seeds, run, folder, path)
    failures = _try_all(setting, wanted, seeds[:1], run, folder, path)
    rows = in_grids(read_rows(path))
    left = {
        method: finalists(rows, setting, method, seed=seeds[0], count=num_finalists)
        for method in complete(wanted, failures)
    }
    return {**failures, **_try_all(setting, left, seeds[1:], run, folder, path)}


def _try_all(
    setting: str,
    wanted: Mapping[str, list[dict[str, Any]]],
    seeds: Iterable[int],
    run: Runner,
    folder: Path,
    path: Path,
) -> dict[Cell, str]:
    done = {(r["setting"], r["method"], r["seed"], r["hyperparameters"]) for r in read_rows(path)}
    cells = [
        Cell(method, setting, seed, tuple(sorted(values.items())), validation=True)
        for seed in seeds
        for method, combinations in wanted.items()
        for values in combinations
        if (setting, method, str(seed), json.dumps(values)) not in done
    ]

    if cells:
        expect_writable(path.parent)

    def enter(cell: Cell, failure: str | None) -> None:
        if failure is None:
            add_row(path, _row(cell, read_result(result_path(cell, folder))))
        elif NonFiniteLossError.__name__ in failure:  # a result, too
            add_row(path, _row(cell, None))

    failures = run_grid(cells, run, on_end=enter)
    # The logs go with the folder of the results.
    return {cell: re.sub(r" \(see [^()]*\.log\)$", "", why) for cell, why in failures.items()}


def _row(cell: Cell, result: Result | None) -> tuple[Any, ...]:
    grids = GRIDS[cell.setting][cell.method]
    values = dict(cell.changes)
    names = next(list(grid) for grid in grids if set(grid) == set(values))
    words = json.dumps({name: values[name] for name in names})  # in the order of the grid
    if result is None:  # it diverged
        scores = ["" if METHODS[cell.method].needs_task_labels else "0.0", "0.0"]
        code = commit()
    else:
        if result["judged_on"] != "valid_stream":
            raise ValueError(
                f"Expected a trial to be judged on valid_stream, got {result['judged_on']}."
            )
        found = [result[scenario]["ACC"] for scenario in ("class_il", "task_il")]
        scores = ["" if value is None else f"{value:.4f}" for value in found]
        code = result["provenance"]["commit"]
    return (cell.setting, cell.method, cell.num_experiences, cell.seed, words, *scores, code)


def complete(methods: Iterable[str], failures: Mapping[Cell, str]) -> list[str]:
    """Those of the methods without a trial that failed otherwise than by diverging."""
    broken = {c.method for c, why in failures.items() if NonFiniteLossError.__name__ not in why}
    return [method for method in methods if method not in broken]


def main() -> None:
    """Tune from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--setting", required=True)
    parser.add_argument(
        "--methods", nargs="+", help="default: all with a grid but no published values"
    )
    parser.add_argument("--seeds", nargs="+", type=SEED, default=[0])
    parser.add_argument("--trials", type=COUNT, help="of each grid, at most so many; default: all")
    parser.add_argument(
        "--finalists", type=COUNT, help="only so many are tried with the seeds after the first"
    )
    add_pool_arguments(parser)
    words = parser.parse_args()
    words.seeds = list(dict.fromkeys(words.seeds))
    try:
        setting = words.setting
        methods = words.methods or to_tune(setting)
        expect_as_many_seeds(setting, methods, words.seeds)
        with tempfile.TemporaryDirectory() as folder:
            failures = tune(
                setting,
                methods,
                words.seeds,
                pool_of(words, Path(folder)),
                folder=Path(folder),
                most=words.trials,
                num_finalists=words.finalists,
            )
        chosen, refused = choose(setting, complete(methods, failures), words.seeds)
    except (ValueError, ImportError, OSError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        sys.exit(f"\nstopped; {TUNING.name} has what was tried, and the same command goes on")
    for cell, reason in failures.items():
        print(f"failed: {cell.name}: {reason}")
    for method, entry in chosen.items():
        print(method, json.dumps(entry))
    for reason in refused.values():
        print(f"failed: {reason}")
    left = [method for method in methods if method not in {**chosen, **refused}]
    if left:
        sys.exit(f"nothing was chosen for {', '.join(left)}: the same command tries again")
    if refused:
        sys.exit(f"nothing was chosen for {', '.join(refused)}")


if __name__ == "__main__":
    main()
