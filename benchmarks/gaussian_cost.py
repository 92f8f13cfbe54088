"""What the Gaussian classifier costs: its work at the end of an experience, beside an epoch of it.

    python -m benchmarks.gaussian_cost --dataset-root DATA --threads 2

The work is that of a second experience, from which on there are two extractors and a map: it does
not depend on the number of epochs.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from avalanche.benchmarks import NCScenario

from avalanche_dlcpa import seed_everything, streams
from benchmarks.gaussian_training import TimedGaussian
from benchmarks.json_file import save_json
from benchmarks.origin import origin_of
from benchmarks.run import add_run_arguments
from benchmarks.throughput import NUM_CLASSES, make_strategy


def measure(
    stream: NCScenario, *, head: str, width: int, epochs: int, device: str = "cpu"
) -> dict[str, Any]:
    """Train two experiences, and time the second one.

    Args:
        stream: Of at least two experiences, images (3, H, W).
        head: Name of a self-supervised head.
        width: Of the ResNet-18.
        epochs: Of each experience; their mean is taken.
        device: Where to train.

    Returns:
        Seconds of an epoch and of the plugin's work, and their ratio.
    """
    seed_everything(0)
    plugin = TimedGaussian()
    strategy = make_strategy(
        head=head,
        network="resnet18",
        width=width,
        layout="channels_last",
        plugin=plugin,
        train_mb_size=32,
        train_epochs=epochs,
        eval_mb_size=256,
        device=device,
    )
    for experience in stream.train_stream[:2]:
        plugin.seconds, start = 0.0, time.perf_counter()
        strategy.train(experience, eval_streams=[])
        seconds = time.perf_counter() - start
    epoch_seconds = (seconds - plugin.seconds) / epochs
    return {
        "epoch_seconds": epoch_seconds,
        "plugin_seconds": plugin.seconds,
        "plugin_epochs": plugin.seconds / epoch_seconds,
    }


def main() -> None:
    """Measure from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--head", default="mocov2")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--images-per-class", type=int, default=96)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/gaussian_cost.json"))
    add_run_arguments(parser)
    words = vars(parser.parse_args())
    out, threads = words.pop("out"), words.pop("threads")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    torch.set_num_threads(threads)
    command = ["python", "-m", "benchmarks.gaussian_cost"]
    for name in ("head", "width", "images_per_class", "epochs"):
        command += [f"--{name.replace('_', '-')}", f"{words[name]}"]
    command += ["--threads", f"{threads}"]
    stream = streams.split_cifar100(
        100 // NUM_CLASSES,
        train_images_per_class=words["images_per_class"],
        augment=False,
        dataset_root=words["dataset_root"],
    )
    how = {name: words[name] for name in ("head", "width", "epochs")}
    result = {
        **how,
        "images_per_class": words["images_per_class"],
        **measure(stream, **how, device=words["device"]),
        "provenance": origin_of(command, words["device"]),
    }
    print(f"wrote {save_json(result, out)}")


if __name__ == "__main__":
    main()
