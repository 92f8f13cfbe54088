"""What the Gaussian classifier costs: its work at the end of an experience, beside an epoch of it.

    python -m benchmarks.gaussian_cost --dataset-root DATA --threads 2

From the second experience on there are two extractors and a map; the work does not depend on the
number of epochs. Each of these experiences is a round, and the median of the rounds is told.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from avalanche.benchmarks import NCScenario

from avalanche_dlcpa import seed_everything, streams
from benchmarks.gaussian_training import TimedGaussian
from benchmarks.origin import origin_of
from benchmarks.run import add_run_arguments
from benchmarks.throughput_setup import NUM_CLASSES, make_strategy
from benchmarks.whole_files import save_json


def measure(
    stream: NCScenario, *, head: str, width: int, epochs: int, rounds: int, device: str = "cpu"
) -> dict[str, Any]:
    """Train the first experience, and time those after it.

    Args:
        stream: Images (3, H, W).
        head: Name of a self-supervised head.
        width: Of the ResNet-18.
        epochs: Of each experience; their mean is taken.
        rounds: Number of experiences after the first, at least 1.
        device: Where to train.

    Returns:
        Seconds of an epoch and of the plugin's work in each round, and the median of their ratios.

    Raises:
        ValueError: There are fewer experiences.
    """
    most = len(stream.train_stream) - 1
    if not 1 <= rounds <= most:
        raise ValueError(f"Expected 1 to {most} rounds, experiences after the first, got {rounds}.")
    seed_everything(0)
    plugin = TimedGaussian()
    strategy = make_strategy(
        head=head,
        network="resnet18",
        width=width,
        layout="channels_last",
        plugins=[plugin],
        train_mb_size=32,
        train_epochs=epochs,
        eval_mb_size=256,
        device=device,
    )
    epoch_seconds, plugin_seconds = [], []
    for experience in stream.train_stream[: rounds + 1]:
        plugin.seconds, start = 0.0, time.perf_counter()
        strategy.train(experience, eval_streams=[])
        seconds = time.perf_counter() - start
        epoch_seconds.append((seconds - plugin.seconds) / epochs)
        plugin_seconds.append(plugin.seconds)
    ratios = [work / epoch for work, epoch in zip(plugin_seconds, epoch_seconds, strict=True)]
    return {
        "epoch_seconds": epoch_seconds[1:],
        "plugin_seconds": plugin_seconds[1:],
        "plugin_epochs": statistics.median(ratios[1:]),
    }


def main() -> None:
    """Measure from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--head", default="mocov2")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--images-per-class", type=int, default=96)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/gaussian_cost.json"))
    add_run_arguments(parser)
    words = vars(parser.parse_args())
    out, threads = words.pop("out"), words.pop("threads")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    torch.set_num_threads(threads)
    command = ["python", "-m", "benchmarks.gaussian_cost"]
    for name in ("head", "width", "images_per_class", "epochs", "rounds"):
        command += [f"--{name.replace('_', '-')}", f"{words[name]}"]
    command += ["--threads", f"{threads}"]
    stream = streams.split_cifar100(
        100 // NUM_CLASSES,
        train_images_per_class=words["images_per_class"],
        augment=False,
        dataset_root=words["dataset_root"],
    )
    how = {name: words[name] for name in ("head", "width", "epochs", "rounds")}
    result = {
        **how,
        "images_per_class": words["images_per_class"],
        **measure(stream, **how, device=words["device"]),
        "provenance": origin_of(command, words["device"]),
    }
    print(f"wrote {save_json(result, out)}")


if __name__ == "__main__":
    main()
