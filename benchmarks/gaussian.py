"""Gaussian classifiers beside the trained linear heads, all variants on the features of one run.

    python -m benchmarks.gaussian --method dlcpa-mocov2 --setting lab-cifar100 --num-experiences 10

trains a method once, keeping its network after every experience, and judges on the same features,
after every experience, the trained heads and every Gaussian variant (`gaussian_variants`). With
``--validation`` it judges every combination of priors on the validation split instead, to choose
from. Networks that are there are not trained again. With ``--images-per-class`` the Gaussian
classifiers have but some of the images that the network was trained on. One JSON a judgement, for
`benchmarks.gaussian_report`. The oracle alone looks at images of old classes, and only here.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch

from avalanche_dlcpa.gaussian_plugin import COVARIANCE_PRIOR, MAP_PRIOR
from benchmarks.gaussian_judge import Judge
from benchmarks.gaussian_training import RECORD, StudiedTraining
from benchmarks.gaussian_variants import Combinations, Variants
from benchmarks.names import COUNT, SEED
from benchmarks.origin import origin_of
from benchmarks.run import add_run_arguments
from benchmarks.whole_files import expect_writable, save_json

HOW = ("validation", "images_per_class", "dataset_root", "device")
Result = dict[str, Any]


def study(
    training: StudiedTraining,
    networks: Path,
    *,
    validation: bool = False,
    images_per_class: int | None = None,
    dataset_root: str | None = None,
    device: str = "cpu",
    command: list[str] | None = None,
) -> Result:
    """Train a method, and judge its heads and the Gaussian classifiers on its features.

    Args:
        training: What to train.
        networks: Folder that keeps the network after each experience; where they are already,
            nothing is trained.
        validation: Whether to judge, on the validation split, every combination of priors in the
            place of the variants.
        images_per_class: That the Gaussian classifiers learn from; None: all.
        dataset_root: Folder of the data; None: Avalanche's default.
        device: Where to train.
        command: For the provenance.

    Returns:
        By variant and scenario, accuracy matrix, ACC, BWT and others; the seconds of training, and
        of what `GaussianClassifierPlugin` does beyond it.

    Raises:
        ValueError: The networks in the folder are of another training, or another process makes
            them now.
    """
    command = command or []
    if not training.done(networks):
        training.run(networks, dataset_root=dataset_root, device=device, command=command)
    record = json.loads((networks / RECORD).read_text(encoding="utf-8"))
    stream = training.stream(dataset_root)
    judge = Judge(
        Combinations()
        if validation
        else Variants(covariance_prior=COVARIANCE_PRIOR, map_prior=MAP_PRIOR),
        stream.valid_stream if validation else stream.test_stream,
        images_per_class=images_per_class,
    )
    for step in range(training.plan.num_experiences):
        judge.judge(training.network(step, networks, device=device), stream.train_stream[step])
    return {
        **training.words,
        "images_per_class": images_per_class,
        "covariance_prior": COVARIANCE_PRIOR,
        "map_prior": MAP_PRIOR,
        "judged_on": "valid_stream" if validation else "test_stream",
        "training_seconds": record["training_seconds"],
        "plugin_seconds": record["plugin_seconds"],
        "variants": judge.summaries(),
        "provenance": {**origin_of(command, device), "training": record["provenance"]},
    }


def main() -> None:
    """Run one study from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--method", required=True)
    parser.add_argument("--setting", required=True)
    parser.add_argument("--seed", type=SEED, default=0)
    parser.add_argument("--num-experiences", type=COUNT)
    parser.add_argument("--epochs", type=COUNT)
    parser.add_argument(
        "--validation", action="store_true", help="judge all combinations on the validation split"
    )
    parser.add_argument(
        "--images-per-class", type=COUNT, help="to learn Gaussian classifiers from; default: all"
    )
    parser.add_argument("--out", type=Path, default=Path("results/gaussian"))
    parser.add_argument(
        "--networks", type=Path, help="folder that keeps the networks of all runs; default: in out"
    )
    add_run_arguments(parser)
    words = vars(parser.parse_args())
    out, threads, networks = (words.pop(name) for name in ("out", "threads", "networks"))
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    torch.set_num_threads(threads)
    command = ["python", "-m", "benchmarks.gaussian"]
    for name, value in words.items():
        shown = name not in ("dataset_root", "device") and value is not None and value is not False
        command += [f"--{name.replace('_', '-')}", *([] if value is True else [f"{value}"])] * shown
    how = {name: words.pop(name) for name in HOW}
    try:
        expect_writable(out)
        training = StudiedTraining(**words)
        folder = (networks or out / "networks") / training.name
        result = study(training, folder, **how, command=command)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    kind = "validation" if how["validation"] else "variants"
    if how["images_per_class"] is not None:
        kind += f"_images={how['images_per_class']}"
    print(f"wrote {save_json(result, out / f'{training.name}_{kind}.json')}")


if __name__ == "__main__":
    main()
