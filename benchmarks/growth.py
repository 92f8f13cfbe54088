"""How time and memory of DLCPA grow with the number of experiences and of classes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch
from avalanche.benchmarks import tensors_benchmark

from avalanche_dlcpa import DLCPAStrategy, seed_everything
from benchmarks.memory import kept_bytes
from benchmarks.throughput_setup import (
    IMAGES_OF_A_DIGIT,
    NUM_CLASSES,
    digits,
    images_per_class,
    make_strategy,
)
from benchmarks.timing import EpochTimes

Row = dict[str, Any]


def with_experiences(
    num_experiences: int, *, iterations: int, rounds: int, device: str = "cpu", **options: Any
) -> list[Row]:
    """Time and memory as experiences of 10 new classes each come in.

    The machine may be faster in one minute than in another. So the iterations of an experience are
    timed in several epochs, and after each of them, as many of another strategy's first experience
    of 10 classes.

    Args:
        num_experiences: To train.
        iterations: Of an epoch.
        rounds: Epochs of a row, of which the median is taken.
        device: Where to train.
        options: Batch size and what else `make_strategy` takes.

    Returns:
        A row for experiences 1, 2, 5, 10, ... and the last: classes so far, median milliseconds of
        an iteration and of one of a first experience, median of the ratios of each round, and bytes
        of all tensors that stay, those of the classifiers and the others.
    """
    training = _Training(iterations, rounds, device, options)
    seed_everything(0)
    times = EpochTimes()
    strategy = training.new_strategy(times)
    told = {f * 10**p for f in (1, 2, 5) for p in range(5)} | {num_experiences}
    rows = []
    for number in range(1, num_experiences + 1):
        classes = range(NUM_CLASSES * (number - 1), NUM_CLASSES * number)
        if number in told:
            rows.append({"experience": number, **training.row(strategy, times, classes)})
        else:
            training.learn(strategy, classes)
    return rows


def with_classes(
    counts: Sequence[int], *, iterations: int, rounds: int, device: str = "cpu", **options: Any
) -> list[Row]:
    """Time and memory of a first experience of so many classes, one strategy each.

    Args:
        counts: Of classes.
        iterations: Of an epoch, at least; so many more that each class has an image.
        rounds: Epochs of a row, of which the median is taken.
        device: Where to train.
        options: Batch size and what else `make_strategy` takes.

    Returns:
        A row a count, as `with_experiences` has them.

    Raises:
        ValueError: See `expect_enough_images`.
    """
    expect_enough_images(counts, iterations, options["batch_size"])
    iterations = _iterations_for(counts, iterations, options["batch_size"])
    training = _Training(iterations, rounds, device, options)
    rows = []
    for count in counts:
        seed_everything(0)
        times = EpochTimes()
        rows.append(training.row(training.new_strategy(times), times, range(count)))
    return rows


def expect_enough_images(counts: Sequence[int], iterations: int, batch_size: int) -> None:
    """Refuse more classes than there are images; `throughput` asks before it measures anything.

    Args:
        counts: Of classes, as `with_classes` takes them.
        iterations: Of an epoch.
        batch_size: Of the mini-batches.

    Raises:
        ValueError: Digits have too few images for such a mini-batch, or for so many classes in full
            mini-batches.
    """
    iterations = _iterations_for(counts, iterations, batch_size)
    images = NUM_CLASSES * images_per_class(iterations, batch_size, most=IMAGES_OF_A_DIGIT)
    if counts and max(counts) > images:
        raise ValueError(
            f"Expected at most {images} classes, which is how many digits fill mini-batches of "
            f"{batch_size}, got {max(counts)}."
        )


def _iterations_for(counts: Sequence[int], iterations: int, batch_size: int) -> int:
    """At least so many, and so many that each class has an image."""
    return max(iterations, -(-max(counts, default=0) // batch_size))


class _Training:
    """Trains strategies on digits, whose classes are invented: images in turn are of each."""

    def __init__(self, iterations: int, rounds: int, device: str, options: dict[str, Any]):
        self.images, _ = digits(iterations, options["batch_size"])
        self.rounds = rounds
        self._options = {
            **{name: value for name, value in options.items() if name != "batch_size"},
            "train_mb_size": options["batch_size"],
            "device": device,
        }

    def new_strategy(self, times: EpochTimes) -> DLCPAStrategy:
        """A strategy that has learned nothing and trains one epoch an experience."""
        return make_strategy(plugins=[times], **self._options)

    def learn(self, strategy: DLCPAStrategy, classes: range) -> None:
        """Train an experience of these classes."""
        labels = torch.arange(len(self.images)) % len(classes) + classes.start
        data = [(self.images, labels)]
        stream = tensors_benchmark(data, data, task_labels=[0])
        strategy.train(stream.train_stream[0], eval_streams=[])

    def row(self, strategy: DLCPAStrategy, times: EpochTimes, classes: range) -> Row:
        """Train an experience whose epochs are timed, each beside one of a first experience."""
        first_ms = list[float]()

        def first_experience() -> None:
            own = EpochTimes()
            self.learn(self.new_strategy(own), range(NUM_CLASSES))
            first_ms.extend(own.medians)

        strategy.train_epochs, times.between = self.rounds, first_experience
        self.learn(strategy, classes)
        strategy.train_epochs, times.between = 1, None
        kept = kept_bytes(strategy)
        own = sum(weights.nbytes for weights in strategy.model.classifiers.parameters())
        pairs = zip(times.medians, first_ms, strict=True)
        return {
            "classes": classes.stop,
            "iteration_ms": statistics.median(times.medians),
            "first_ms": statistics.median(first_ms),
            "ratio": statistics.median(late / first for late, first in pairs),
            "kept_bytes": kept,
            "classifier_bytes": own,
            "other_bytes": kept - own,
        }
