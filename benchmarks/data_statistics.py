"""The paper's table of data set statistics, counted from the streams with its validation split.

python -m benchmarks.data_statistics --dataset-root DATA
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from avalanche.benchmarks import NCScenario

from avalanche_dlcpa import streams

DATA_SETS: dict[str, Callable[..., NCScenario]] = {
    "digits": streams.split_digits,
    "MNIST": streams.split_mnist,
    "CIFAR-100": streams.split_cifar100,
    "Tiny-ImageNet": streams.split_tiny_imagenet,
}
COLUMNS = ("data set", "input", "classes", "training", "validation", "test")


def row(name: str, **options: Any) -> tuple[str, ...]:
    """The row of a data set: input size, classes, and images a class in each split."""
    scenario = DATA_SETS[name](validation_fraction=0.1, **options)
    first = scenario.test_stream[0].dataset[0][0]
    splits = (scenario.train_stream, scenario.valid_stream, scenario.test_stream)
    return (
        name,
        " x ".join(map(str, first.shape)),
        str(scenario.n_classes),
        *(_images_a_class(split) for split in splits),
    )


def _images_a_class(stream: Iterable[Any]) -> str:
    counts: Counter[int] = Counter()
    for experience in stream:
        counts.update(int(label) for label in experience.dataset.targets)
    least, most = min(counts.values()), max(counts.values())
    return str(least) if least == most else f"{least} to {most}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--dataset-root", help="folder of data already on disk")
    parser.add_argument("--data", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    words = parser.parse_args()
    rows = [row(name, dataset_root=words.dataset_root) for name in words.data]
    widths = [max(len(line[i]) for line in [COLUMNS, *rows]) for i in range(len(COLUMNS))]
    print("images a class in each split, a tenth of the training images held out\n")
    for line in [COLUMNS, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


if __name__ == "__main__":
    main()
