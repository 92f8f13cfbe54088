"""How fast DLCPA trains, beside the passes through the networks that it cannot avoid.

python -m benchmarks.throughput --dataset-root DATA --threads 2 --out results/throughput.json

An iteration is one of a real `strategy.train`: loader, hooks and metrics included. The passes are
timed between the epochs of the same training, so that both see the same machine. With a dataset
root the images are CIFAR-100's, without it scikit-learn's digits, enlarged to the same size.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from avalanche_dlcpa import seed_everything
from avalanche_dlcpa.precision import PRECISIONS
from avalanche_dlcpa.self_supervised import HEADS
from benchmarks.growth import expect_enough_images, with_classes, with_experiences
from benchmarks.memory import peak_bytes, reset_peak
from benchmarks.origin import origin_of
from benchmarks.phases import PHASES
from benchmarks.run import add_run_arguments
from benchmarks.throughput_setup import LAYOUTS, NETWORKS, make_strategy, one_experience
from benchmarks.timing import EpochTimer
from benchmarks.whole_files import save_json

QUICK = {
    "widths": [4],
    "batch_sizes": [8],
    "iterations": 2,
    "rounds": 2,
    "growth": 3,
    "classes": [10, 20],
}
TABLE = ("head", "network", "width", "batch_size", "precision", "layout")
FIGURES = ("iteration_ms", "passes_ms", "ratio", "images_per_second", "peak_mb")

Row = dict[str, Any]


def measure(
    *,
    head: str,
    network: str,
    width: int,
    batch_size: int,
    precision: str,
    layout: str,
    iterations: int,
    rounds: int,
    dataset_root: str | None = None,
    device: str = "cpu",
    image_cache: bool = True,
) -> Row:
    """Time one configuration.

    Args:
        head: Name of a self-supervised head, or ``"none"``.
        network: Of `NETWORKS`.
        width: Of the network.
        batch_size: In training.
        precision: Of the strategy.
        layout: Of the network's weights, of `LAYOUTS`.
        iterations: Of an epoch, at least, as far as there are images.
        rounds: Epochs of which the median is taken.
        dataset_root: Folder of CIFAR-100; None: digits.
        device: Where to train.
        image_cache: Whether the images are held on the device.

    Returns:
        Median milliseconds of iterations and passes, median of the ratios of each round, images a
        second, the most memory (on a CPU resident, all of the process), shares of the phases.
    """
    gc.collect()
    reset_peak(device)
    seed_everything(0)
    stopwatch = EpochTimer(rounds)
    strategy = make_strategy(
        head=head,
        network=network,
        width=width,
        layout=layout,
        plugins=[stopwatch],
        precision=precision,
        train_mb_size=batch_size,
        train_epochs=stopwatch.epochs,
        device=device,
        **({} if image_cache else {"image_cache_bytes": 0}),
    )
    stream = one_experience(dataset_root, iterations, batch_size)
    strategy.train(stream.train_stream[0], eval_streams=[])
    assert stopwatch.phases is not None
    pairs = zip(stopwatch.iteration_ms, stopwatch.passes_ms, strict=True)
    iteration_ms = statistics.median(stopwatch.iteration_ms)
    return {
        "head": head,
        "network": network,
        "width": width,
        "batch_size": batch_size,
        "precision": precision,
        "layout": layout,
        "iteration_ms": iteration_ms,
        "passes_ms": statistics.median(stopwatch.passes_ms),
        "ratio": statistics.median(iteration / passes for iteration, passes in pairs),
        "images_per_second": 1e3 * batch_size / iteration_ms,
        "peak_mb": peak_bytes(device) / 1e6,
        "shares": stopwatch.phases.shares(),
        "rounds": {"iteration_ms": stopwatch.iteration_ms, "passes_ms": stopwatch.passes_ms},
    }


def table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Rows as lines of text, numbers to the right."""
    cells = [list(columns), *[[_cell(row[name]) for name in columns] for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in cells
    )


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--heads", nargs="+", choices=["none", *HEADS], default=["mocov2", "simclr", "byol"]
    )
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=["resnet18"])
    parser.add_argument("--widths", nargs="+", type=int, default=[64, 16])
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[32])
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=["contiguous"])
    parser.add_argument("--iterations", type=int, default=20, help="of a round")
    parser.add_argument("--rounds", type=int, default=5, help="of which the median is taken")
    parser.add_argument(
        "--growth", type=int, default=100, help="experiences of the growth figures; 0: none"
    )
    parser.add_argument(
        "--classes", nargs="*", type=int, default=[10, 100, 1000], help="of one experience"
    )
    parser.add_argument("--own-loader", action="store_true", help="Avalanche's, no image cache")
    parser.add_argument("--quick", action="store_true", help="only show that everything works")
    parser.add_argument("--out", type=Path, default=Path("results/throughput.json"))
    add_run_arguments(parser)
    arguments = parser.parse_args(words)
    if arguments.quick:
        parser.set_defaults(**QUICK)
        arguments = parser.parse_args(words)
    if arguments.growth or arguments.classes:
        try:
            expect_enough_images(arguments.classes, arguments.iterations, arguments.batch_sizes[0])
        except ValueError as error:
            parser.error(
                f"{error} What grows is measured on digits with the first batch size: give fewer "
                "--classes, or none with --growth 0."
            )
    return arguments


def command_of(words: Sequence[str], dataset_root: str | None) -> list[str]:
    """The command line without where the data lie on this machine.

    Example:
        >>> command_of(["--dataset-root=a=d", "--device=cuda", "--quick"], "a=d")[3:]
        ['--dataset-root=DATA', '--device=cuda', '--quick']
    """
    shown = ["python", "-m", "benchmarks.throughput"]
    for word in words:
        is_folder = dataset_root and (word == dataset_root or word.endswith(f"={dataset_root}"))
        shown.append(f"{word.removesuffix(str(dataset_root))}DATA" if is_folder else word)
    return shown


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print the tables as they grow and write the JSON after each configuration."""
    given = _arguments(words)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", message="No loggers specified")
    torch.set_num_threads(given.threads)
    command = command_of(sys.argv[1:] if words is None else words, given.dataset_root)
    origin = origin_of(command, given.device)
    result: Row = {"configurations": [], "growth": [], "classes": [], "provenance": origin}
    names = (
        *(given.heads, given.networks, given.widths),
        *(given.batch_sizes, given.precisions, given.layouts),
    )
    failed = []
    for configuration in itertools.product(*names):
        name = " ".join(map(str, configuration))
        try:
            row = measure(
                **dict(zip(TABLE, configuration, strict=True)),
                iterations=given.iterations,
                rounds=given.rounds,
                dataset_root=given.dataset_root,
                device=given.device,
                image_cache=not given.own_loader,
            )
        except Exception:  # such as too little memory: the others are wanted
            traceback.print_exc()
            failed.append(name)
            continue
        result["configurations"].append(row)
        save_json(result, given.out)
        ms, ratio = row["iteration_ms"], row["ratio"]
        print(f"measured {name}: {ms:.1f} ms an iteration, {ratio:.3f} of its passes", flush=True)
    rows = result["configurations"]
    print(f"\n{table(rows, (*TABLE, *FIGURES))}\n\nshares of an iteration in percent")
    percent = [row | {name: 100 * row["shares"][name] for name in PHASES} for row in rows]
    print(table(percent, (*TABLE, *PHASES)))
    first = [values[0] for values in names[:2]] + [min(given.widths)]
    settings = dict(zip(TABLE, [*first, *(values[0] for values in names[3:])], strict=True))
    how = {name: getattr(given, name) for name in ("iterations", "rounds", "device")}
    if given.growth:
        result["growth"] = with_experiences(given.growth, **settings, **how)
        save_json(result, given.out)
        columns = [*result["growth"][0]]
        print(f"\nwith the number of experiences\n{table(result['growth'], columns)}")
    if given.classes:
        result["classes"] = with_classes(given.classes, **settings, **how)
        columns = [*result["classes"][0]]
        print(f"\nwith the number of classes of one\n{table(result['classes'], columns)}")
    print(f"wrote {save_json(result, given.out)}")
    if failed:
        raise SystemExit(
            f"Expected all configurations to be measured, but not: {', '.join(failed)}"
        )


if __name__ == "__main__":
    main()
