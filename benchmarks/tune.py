"""Choose hyperparameters on the validation split, never on the test set.

    python -m benchmarks.tune --setting digits --methods naive ewc --jobs 2

Optuna goes through the combinations of a method's grid (`benchmarks.grids`), each trained on the
first experiences with the validation split held out. Every trial adds a row to
``benchmarks/results/tuning.csv``; what the file already holds is not run again. The chosen values,
those with the highest Class-IL ACC among those within a point of the best Task-IL ACC, go to
``benchmarks/results/hyperparameters.json`` with their provenance.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna

from avalanche_dlcpa import NonFiniteLossError
from benchmarks.cells import Cell, Result, read_result, result_path
from benchmarks.grids import GRIDS, Grid
from benchmarks.hyperparameters import CHOSEN, DIVERGED, PUBLISHED
from benchmarks.json_file import save_json
from benchmarks.live import run_grid
from benchmarks.methods import METHODS
from benchmarks.names import expect_known
from benchmarks.origin import commit
from benchmarks.pool import Runner, add_pool_arguments, pool_of
from benchmarks.settings import SETTINGS

TUNING = Path(__file__).parent / "results" / "tuning.csv"
FIELDS = (
    "setting",
    "method",
    "num_experiences",
    "seed",
    "hyperparameters",
    "class_il_ACC",
    "task_il_ACC",
    "commit",
)
Row = dict[str, str]


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


def read_rows(path: Path = TUNING) -> list[Row]:
    """The trials that have been run so far."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def in_grids(rows: Iterable[Row]) -> list[Row]:
    """Those of the trials that are in the grids of today, not in earlier ones."""
    words = {
        (setting, method): {
            json.dumps(dict(zip(grid, values, strict=True)))
            for grid in of_method
            for values in itertools.product(*grid.values())
        }
        for setting, grids in GRIDS.items()
        for method, of_method in grids.items()
    }
    return [r for r in rows if r["hyperparameters"] in words.get((r["setting"], r["method"]), ())]


def best(rows: Iterable[Row], setting: str, method: str) -> dict[str, Any]:
    """The highest Class-IL ACC among those within a point of the best Task-IL ACC, over all seeds.

    Only values that were tried with as many seeds as any others count. What is known to diverge in
    a longer run is left out. Of equals, and where Class-IL is undefined, Task-IL decides.

    Returns:
        ``hyperparameters``, mean ``class_il_ACC`` and ``task_il_ACC`` (None: undefined),
        ``num_trials`` and ``seeds`` they were chosen from, and ``commits``.

    Raises:
        ValueError: No rows of that setting and method.
    """
    diverged = DIVERGED.get((setting, method), [])
    own = [row for row in rows if (row["setting"], row["method"]) == (setting, method)]
    sound = [row for row in own if json.loads(row["hyperparameters"]) not in diverged]
    if not sound:
        raise ValueError(f"Expected tuning rows of {method} in {setting}, got none.")
    scores: dict[str, dict[str, tuple[float, float]]] = {}
    for row in sound:
        scores.setdefault(row["hyperparameters"], {})[row["seed"]] = _accuracies(row)
    most_seeds = max(map(len, scores.values()))
    means = {
        words: tuple(statistics.fmean(scenario) for scenario in zip(*pairs.values(), strict=True))
        for words, pairs in scores.items()
        if len(pairs) == most_seeds
    }
    top = max(task_il for _, task_il in means.values())
    near = [words for words, (_, task_il) in means.items() if task_il >= top - 0.01]
    chosen = max(near, key=means.__getitem__)
    names = ("class_il_ACC", "task_il_ACC")
    undefined = {name for name in names if not any(row[name] for row in sound)}
    return {
        "hyperparameters": json.loads(chosen),
        **{
            name: None if name in undefined else round(mean, 4)
            for name, mean in zip(names, means[chosen], strict=True)
        },
        "num_trials": len(own),
        "seeds": sorted({int(row["seed"]) for row in own}),
        "commits": sorted({row["commit"] for row in own}),
    }


def finalists(
    rows: Iterable[Row], setting: str, method: str, *, seed: int, count: int
) -> list[dict[str, Any]]:
    """The combinations with the highest sum of Class-IL and Task-IL ACC of one seed.

    Args:
        rows: Of trials.
        setting: Of the trials.
        method: Of the trials.
        seed: Of the trials.
        count: How many.
    """
    place = (setting, method, str(seed))
    own = [row for row in rows if (row["setting"], row["method"], row["seed"]) == place]
    best_first = sorted(own, key=lambda row: -sum(_accuracies(row)))
    return [json.loads(row["hyperparameters"]) for row in best_first[:count]]


def _accuracies(row: Row) -> tuple[float, float]:
    return float(row["class_il_ACC"] or 0), float(row["task_il_ACC"] or 0)


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

    def enter(cell: Cell, failure: str | None) -> None:
        if failure is None:
            _add_row(path, _row(cell, read_result(result_path(cell, folder))))
        elif NonFiniteLossError.__name__ in failure:  # a result, too
            _add_row(path, _row(cell, None))

    failures = run_grid(cells, run, on_end=enter)
    # The logs go with the folder of the results.
    return {cell: reason.partition(" (see logs/")[0] for cell, reason in failures.items()}


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


def _add_row(path: Path, row: tuple[Any, ...]) -> None:
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if file.tell() == 0:
            writer.writerow(FIELDS)
        writer.writerow(row)


def complete(methods: Iterable[str], failures: Mapping[Cell, str]) -> list[str]:
    """Those of the methods without a trial that failed otherwise than by diverging."""
    broken = {c.method for c, why in failures.items() if NonFiniteLossError.__name__ not in why}
    return [method for method in methods if method not in broken]


def choose(setting: str, methods: Iterable[str], path: Path = CHOSEN) -> dict[str, dict[str, Any]]:
    """Write what is best, method by method, into the file of the chosen values; returns it."""
    methods = list(methods)
    chosen = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    rows = in_grids(read_rows())
    for method in methods:
        chosen.setdefault(setting, {})[method] = best(rows, setting, method)
    in_order = {
        setting: {method: values[method] for method in METHODS if method in values}
        for setting, values in chosen.items()
    }
    save_json(in_order, path)
    return {method: chosen[setting][method] for method in methods}


def main() -> None:
    """Tune from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--setting", required=True)
    parser.add_argument(
        "--methods", nargs="+", help="default: all with a grid but no published values"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--trials", type=int, help="of each grid, at most so many; default: all")
    parser.add_argument(
        "--finalists", type=int, help="only so many are tried with the seeds after the first"
    )
    add_pool_arguments(parser)
    words = parser.parse_args()
    try:
        setting = words.setting
        methods = words.methods or to_tune(setting)
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
        chosen = choose(setting, complete(methods, failures))
    except (ValueError, ImportError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        sys.exit(f"\nstopped; {TUNING.name} has what was tried, and the same command goes on")
    for cell, reason in failures.items():
        print(f"failed: {cell.name}: {reason}")
    for method, entry in chosen.items():
        print(method, json.dumps(entry))
    left = [method for method in methods if method not in chosen]
    if left:
        sys.exit(f"nothing was chosen for {', '.join(left)}: the same command tries again")


if __name__ == "__main__":
    main()
