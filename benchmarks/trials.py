"""What has been tried on the validation split, and what is chosen from it.

``benchmarks/results/tuning.csv`` has a row a trial; the values with the highest Class-IL ACC among
those within a point of the best Task-IL ACC go to ``benchmarks/results/hyperparameters.json`` with
their provenance.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.grids import GRIDS
from benchmarks.hyperparameters import CHOSEN, chosen_values
from benchmarks.methods import METHODS
from benchmarks.whole_files import save_json

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
NEAR = 0.01  # of the best Task-IL ACC
Row = dict[str, str]


class AllDivergedError(ValueError):
    """There is nothing to choose from."""


def read_rows(path: Path = TUNING) -> list[Row]:
    """The trials that have been run so far, but for a last one whose row was cut short.

    Raises:
        ValueError: Another first line than `FIELDS`, or a row of other than so many values.
    """
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    lines = csv.reader(text[: text.rfind("\n") + 1].splitlines())
    first, *rows = [line for line in lines if line] or [list(FIELDS)]
    strange = [first] if tuple(first) != FIELDS else [r for r in rows if len(r) != len(FIELDS)]
    if strange:
        raise ValueError(
            f"Expected {path.name} to have {','.join(FIELDS)} as its first line and a value for "
            f"each in all others, got {','.join(strange[0])}: take it from the repository again."
        )
    return [dict(zip(FIELDS, row, strict=True)) for row in rows]


def add_row(path: Path, row: tuple[Any, ...]) -> None:
    """Add a trial, with the values of `FIELDS`."""
    if path.exists():
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):  # what was cut short by a kill or a full disk is tried again
            os.truncate(path, whole)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if file.tell() == 0:
            writer.writerow(FIELDS)
        writer.writerow(row)


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


def best(rows: Iterable[Row], setting: str, method: str, seeds: Iterable[int]) -> dict[str, Any]:
    """The highest Class-IL ACC among those within a point of the best Task-IL ACC, over the seeds.

    Only values that were tried with as many seeds as any others count. Of equals, and where
    Class-IL is undefined, Task-IL decides.

    Returns:
        ``hyperparameters``, mean ``class_il_ACC`` and ``task_il_ACC`` (None: undefined),
        ``num_trials`` and ``seeds`` they were chosen from, and ``commits``.

    Raises:
        ValueError: No rows of that setting and method.
        AllDivergedError: There are rows, of training that diverged.
    """
    wanted = {(setting, method, str(seed)) for seed in seeds}
    own = [row for row in rows if (row["setting"], row["method"], row["seed"]) in wanted]
    if not own:
        raise ValueError(f"Expected tuning rows of {method} in {setting}, got none.")
    scores: dict[str, dict[str, tuple[float, float]]] = {}
    for row in own:
        scores.setdefault(row["hyperparameters"], {})[row["seed"]] = _accuracies(row)
    most_seeds = max(map(len, scores.values()))
    means = {
        words: tuple(statistics.fmean(scenario) for scenario in zip(*pairs.values(), strict=True))
        for words, pairs in scores.items()
        if len(pairs) == most_seeds
    }
    top = max(task_il for _, task_il in means.values())
    if top == 0:
        raise AllDivergedError(
            f"Expected a trial of {method} in {setting} that did not diverge, got {len(own)} that "
            "did: lower the learning rates of its grid in grids.py."
        )
    near = [words for words, (_, task_il) in means.items() if task_il >= top - NEAR]
    chosen = max(near, key=means.__getitem__)
    names = ("class_il_ACC", "task_il_ACC")
    undefined = {name for name in names if not any(row[name] for row in own)}
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
    """The combinations that `best` would choose by one seed, then the highest sums of both ACCs.

    Args:
        rows: Of trials.
        setting: Of the trials.
        method: Of the trials.
        seed: Of the trials.
        count: How many.
    """
    place = (setting, method, str(seed))
    own = [row for row in rows if (row["setting"], row["method"], row["seed"]) == place]
    top = max((_accuracies(row)[1] for row in own), default=0.0)

    def rank(row: Row) -> tuple[bool, float, float]:
        class_il, task_il = _accuracies(row)
        is_near = task_il >= top - NEAR
        return is_near, class_il if is_near else class_il + task_il, task_il

    best_first = sorted(own, key=rank, reverse=True)
    return [json.loads(row["hyperparameters"]) for row in best_first[:count]]


def _accuracies(row: Row) -> tuple[float, float]:
    return float(row["class_il_ACC"] or 0), float(row["task_il_ACC"] or 0)


def expect_as_many_seeds(
    setting: str, methods: Iterable[str], seeds: Sequence[int], path: Path = CHOSEN
) -> None:
    """Refuse to choose by fewer seeds than a value was chosen by that is there.

    Raises:
        ValueError: Names them.
    """
    chosen = chosen_values(path).get(setting, {})
    for method in methods:
        missing = sorted(set(chosen.get(method, {}).get("seeds", [])) - set(seeds))
        if missing:
            known = " ".join(map(str, chosen[method]["seeds"]))
            raise ValueError(
                f"Expected --seeds {known}, by which the values of {method} in {setting} were "
                f"chosen, got {' '.join(map(str, seeds))}: name them all, with --finalists where "
                f"few were tried with all, or delete the values in {path.name} first."
            )


def choose(
    setting: str, methods: Iterable[str], seeds: Sequence[int], path: Path = CHOSEN
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Write what is best, method by method, into the file of the chosen values.

    Args:
        setting: Of the trials.
        methods: With all trials of the seeds.
        seeds: Of those that count: others may have been broken off.
        path: The file.

    Returns:
        What was written of each method, and of methods whose trials all diverged, the reason.
    """
    rows = in_grids(read_rows())
    found, refused = {}, {}
    for method in methods:
        try:
            found[method] = best(rows, setting, method, seeds)
        except AllDivergedError as error:
            refused[method] = str(error)
    if not found:
        return found, refused
    chosen = chosen_values(path)  # as they are now, with what others may have chosen meanwhile
    chosen[setting] = {**chosen.get(setting, {}), **found}
    in_order = {
        setting: {method: values[method] for method in METHODS if method in values}
        for setting, values in chosen.items()
    }
    save_json(in_order, path)
    return found, refused
