"""Choose hyperparameters on the validation split, never on the test set.

    python -m benchmarks.tune --setting digits --methods naive ewc

Tries every combination of a grid on the paper's 10 % validation split of the first
experiences, adds a row for each to ``benchmarks/results/tuning.csv`` and prints the best: that with
the highest Class-IL ACC among those within a point of the best Task-IL ACC, averaged over seeds.
What the file already holds is not run again.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.hyperparameters import DIVERGED, GRIDS
from benchmarks.methods import METHODS
from benchmarks.run import provenance, run_cell
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


def combinations(grids: list[dict[str, list[Any]]]) -> Iterator[dict[str, Any]]:
    """All combinations of each grid, a mapping from name to values.

    Example:
        >>> list(combinations([{"lr": [0.1, 0.2], "strength": [1]}]))
        [{'lr': 0.1, 'strength': 1}, {'lr': 0.2, 'strength': 1}]
    """
    for grid in grids:
        for values in itertools.product(*grid.values()):
            yield dict(zip(grid, values, strict=True))


def read_rows(path: Path = TUNING) -> list[dict[str, str]]:
    """The rows that have been run so far."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def best(rows: list[dict[str, str]], setting: str, method: str) -> dict[str, Any]:
    """The highest Class-IL ACC among those within a point of the best Task-IL ACC, over all seeds.

    Leaves out what is known to diverge in a longer run.

    Raises:
        ValueError: No rows of that setting and method.
    """
    scores: dict[str, list[tuple[float, float]]] = {}
    diverged = DIVERGED.get((setting, method), [])
    for row in rows:
        is_sound = json.loads(row["hyperparameters"]) not in diverged
        if (row["setting"], row["method"]) == (setting, method) and is_sound:
            pair = (float(row["class_il_ACC"]), float(row["task_il_ACC"]))
            scores.setdefault(row["hyperparameters"], []).append(pair)
    if not scores:
        raise ValueError(f"Expected tuning rows of {method} in {setting}, got none.")
    means = {
        words: tuple(statistics.fmean(scenario) for scenario in zip(*pairs, strict=True))
        for words, pairs in scores.items()
    }
    top = max(task_il for _, task_il in means.values())
    near = [words for words, (_, task_il) in means.items() if task_il >= top - 0.01]
    return json.loads(max(near, key=lambda words: means[words][0]))


def try_all(
    setting: str,
    method: str,
    seeds: list[int],
    num_experiences: int,
    dataset_root: str | None,
    path: Path = TUNING,
) -> None:
    """Run what is missing of a method's grid, adding each row as soon as it is known."""
    done = {(r["setting"], r["method"], r["seed"], r["hyperparameters"]) for r in read_rows(path)}
    for chosen, seed in itertools.product(combinations(GRIDS[setting][method]), seeds):
        words = json.dumps(chosen)
        if (setting, method, str(seed), words) in done:
            continue
        try:
            result = run_cell(
                method,
                setting,
                seed,
                hyperparameters=chosen,
                validation=True,
                num_experiences=num_experiences,
                dataset_root=dataset_root,
            )
            scores = [f"{result[scenario]['ACC']:.4f}" for scenario in ("class_il", "task_il")]
        except ValueError as error:  # the loss was not finite, which is a result, too
            print(f"{method} {words}: {error}")
            scores = ["0.0", "0.0"]
        commit = provenance("cpu")["commit"]
        row = (setting, method, num_experiences, seed, words, *scores, commit)
        with path.open("a", newline="") as file:
            writer = csv.writer(file)
            if file.tell() == 0:
                writer.writerow(FIELDS)
            writer.writerow(row)
        print(method, words, seed, *scores, flush=True)


def main() -> None:
    """Tune from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--setting", required=True, choices=SETTINGS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--experiences", type=int, help="how many to learn; default: all")
    parser.add_argument("--dataset-root", help="folder of data already on disk")
    words = parser.parse_args()
    torch.set_num_threads(1)
    num_experiences = words.experiences or SETTINGS[words.setting].num_experiences
    for method in words.methods:
        try_all(words.setting, method, words.seeds, num_experiences, words.dataset_root)
        print("best", method, best(read_rows(), words.setting, method))


if __name__ == "__main__":
    main()
