"""The paper's table of data set statistics, beside ours, counted with its validation split.

python -m benchmarks.data_statistics --dataset-root DATA --out results
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from avalanche.benchmarks import NCScenario

from avalanche_dlcpa import streams
from benchmarks.markup import Entry, Row, Table, as_text
from benchmarks.names import expect_known
from benchmarks.origin import origin_of
from benchmarks.whole_files import expect_writable, save_json

DATA_SETS: dict[str, Callable[..., NCScenario]] = {
    "digits": streams.split_digits,
    "MNIST": streams.split_mnist,
    "CIFAR-100": streams.split_cifar100,
    "Tiny-ImageNet": streams.split_tiny_imagenet,
}
FILE = "data_statistics.json"  # in the folder of the results
COLUMNS = ("input", "classes", "training", "validation", "test")
# The paper's Table "Dataset statistics".
PUBLISHED = {
    "CIFAR-100": ("3 x 32 x 32", "100", "450", "50", "100"),
    "Tiny-ImageNet": ("3 x 64 x 64", "200", "450", "50", "100"),
}
NOTE = (
    "Images a class in each split. Beside its training images Tiny-ImageNet has 50 labelled ones a "
    "class: they are the test set. Only trials for the choice of hyperparameters hold the "
    "validation split out; the runs of the tables train on both."
)


def row(name: str, **options: Any) -> tuple[str, ...]:
    """The row of a data set: input size, classes, and images a class in each split."""
    scenario = DATA_SETS[name](validation_fraction=0.1, **options)
    first = scenario.test_stream[0].dataset[0][0]
    splits = (scenario.train_stream, scenario.valid_stream, scenario.test_stream)
    return (
        " x ".join(map(str, first.shape)),
        str(scenario.n_classes),
        *(_images_a_class(split) for split in splits),
    )


def table(counted: Mapping[str, Sequence[str]]) -> Table:
    """Ours, and below it the paper's, of each data set.

    Args:
        counted: Rows by the names of data sets.
    """
    rows = []
    for name, ours in counted.items():
        lines = {name: ours, f"{name}, paper": PUBLISHED.get(name, ())}
        rows += [Row(label, tuple(map(Entry, texts))) for label, texts in lines.items() if texts]
    return Table(tuple((name,) for name in COLUMNS), tuple(rows), notes=(NOTE,), corner="data set")


def read_counted(folder: Path) -> dict[str, list[str]]:
    """What was counted into a folder, rows by the names of data sets; empty: nothing.

    Raises:
        ValueError: A file that was cut short or altered, or cannot be read.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        counted = json.loads(path.read_text(encoding="utf-8"))["counted"]
        for name, texts in counted.items():
            if not isinstance(texts, list) or len(texts) != len(COLUMNS):
                raise ValueError(f"not {len(COLUMNS)} texts of {name}")
        return {name: [str(text) for text in texts] for name, texts in counted.items()}
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"Expected {FILE} to hold what was counted, got a file cut short or altered "
            f"({type(error).__name__}: {reason}): delete it, and run "
            "`python -m benchmarks.data_statistics` again."
        ) from error


def _images_a_class(stream: Iterable[Any]) -> str:
    counts: Counter[int] = Counter()
    for experience in stream:
        counts.update(int(label) for label in experience.dataset.targets)
    least, most = min(counts.values()), max(counts.values())
    return str(least) if least == most else f"{least} to {most}"


def main() -> None:
    """Print the table, and write what was counted into the folder of the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--dataset-root", help="folder of data already on disk")
    parser.add_argument("--data", nargs="+", default=list(DATA_SETS))
    parser.add_argument("--out", type=Path, default=Path("results"))
    words = parser.parse_args()
    try:
        for name in words.data:
            expect_known("data set", name, DATA_SETS)
    except ValueError as error:
        parser.error(str(error))
    try:
        expect_writable(words.out)
    except OSError as error:
        parser.error(f"{type(error).__name__}: {error}: name another folder with --out.")
    try:
        counted = {name: row(name, dataset_root=words.dataset_root) for name in words.data}
    except FileNotFoundError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(as_text(table(counted)))
    command = ["python", "-m", "benchmarks.data_statistics", "--data", *words.data]
    found = {"counted": counted, "provenance": origin_of(command, "cpu")}
    try:
        print(f"wrote {save_json(found, words.out / FILE)}")
    except OSError as error:  # a disk that became full
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
