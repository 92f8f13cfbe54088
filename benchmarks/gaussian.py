"""Gaussian classifiers beside the trained linear heads, all variants on the features of one run.

    python -m benchmarks.gaussian --method dlcpa-mocov2 --setting lab-cifar100 --num-experiences 10

trains a method once and, after every experience, judges the trained heads and every Gaussian
variant (`gaussian_variants`) on the same features. With ``--validation`` it judges every
combination of shrinkage and ridge on the validation split instead, to choose from. One JSON a run,
for `benchmarks.gaussian_report`. The oracle alone looks at images of old classes, and only here.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from avalanche.training.plugins import EvaluationPlugin

from avalanche_dlcpa import GaussianClassifierPlugin, seed_everything
from avalanche_dlcpa.gaussian_plugin import RIDGE, SHRINKAGE
from avalanche_dlcpa.training_guards import preserved_random_states
from benchmarks.cells import Cell
from benchmarks.gaussian_judge import Judge
from benchmarks.gaussian_variants import Combinations, Variants
from benchmarks.methods import METHODS
from benchmarks.names import expect_known
from benchmarks.run import Silent, add_run_arguments, expect_finite, origin_of, save_json
from benchmarks.settings import SETTINGS, Setting
from benchmarks.single_task_training import BATCH_SIZE

Result = dict[str, Any]


def study(
    method: str,
    setting: str,
    seed: int,
    *,
    validation: bool = False,
    num_experiences: int | None = None,
    epochs: int | None = None,
    dataset_root: str | None = None,
    device: str = "cpu",
) -> Result:
    """Train a method and judge its heads and the Gaussian classifiers on its features.

    Args:
        method: Of `METHODS`; one that learns experience after experience.
        setting: Of `SETTINGS`; the method runs with its hyperparameters there.
        seed: Of network, order of samples and views.
        validation: Whether to hold out the validation split, and to judge on it every combination
            of shrinkage and ridge in the place of the variants.
        num_experiences: To learn, of those of the stream; None: those of the setting.
        epochs: An experience; None: those of the setting.
        dataset_root: Folder of the data; None: Avalanche's default.
        device: Where to train.

    Raises:
        ValueError: An unknown name, or a method that does not suit.

    Returns:
        By variant and scenario, accuracy matrix, ACC, BWT and others; the seconds of training, and
        of what `GaussianClassifierPlugin` does beyond it.
    """
    chosen = METHODS[expect_known("method", method, METHODS)]
    if chosen.needs_task_labels or chosen.learns_at_once:
        raise ValueError(
            "Expected a method that learns experience after experience and is not told the task, "
            f"got {method}."
        )
    plan = SETTINGS[expect_known("setting", setting, SETTINGS)]
    plan = dataclasses.replace(
        plan,
        epochs=epochs or plan.epochs,
        num_experiences=num_experiences or plan.num_experiences,
    )
    hyperparameters = Cell(method, setting, seed).hyperparameters
    stream = plan.make_stream(
        augment=not chosen.draws_views,
        validation_fraction=0.1 if validation else 0.0,
        dataset_root=dataset_root,
    )
    seed_everything(seed)
    plugin = _Timed()
    strategy = _strategy(method, plan, hyperparameters, plugin, device)
    judge = Judge(
        Combinations() if validation else Variants(shrinkage=SHRINKAGE, ridge=RIDGE),
        stream.valid_stream if validation else stream.test_stream,
    )
    start, judging = time.perf_counter(), 0.0
    for step, experience in enumerate(stream.train_stream[: plan.num_experiences], start=1):
        strategy.train(experience, eval_streams=[])
        expect_finite(strategy, step)
        ended = time.perf_counter()
        with preserved_random_states(strategy.device):
            judge.judge(strategy.model, experience)
        judging += time.perf_counter() - ended
        print(f"learned {step} experiences", flush=True)
    return {
        "method": method,
        "setting": setting,
        "seed": seed,
        "hyperparameters": hyperparameters,
        "shrinkage": SHRINKAGE,
        "ridge": RIDGE,
        "epochs": plan.epochs,
        "num_experiences": plan.num_experiences,
        "judged_on": "valid_stream" if validation else "test_stream",
        "training_seconds": time.perf_counter() - start - judging - plugin.seconds,
        "plugin_seconds": plugin.seconds,
        "variants": judge.summaries(),
    }


class _Timed(GaussianClassifierPlugin):
    """The plugin, with the seconds that its work takes."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Time it."""
        start = time.perf_counter()
        super().before_training_exp(strategy, **kwargs)
        self.seconds += time.perf_counter() - start

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Time it."""
        start = time.perf_counter()
        super().after_training_exp(strategy, **kwargs)
        self.seconds += time.perf_counter() - start


def _strategy(
    method: str, plan: Setting, hyperparameters: Result, plugin: _Timed, device: str
) -> Any:
    chosen = METHODS[method]
    return chosen.build(
        plan.make_network(plan.num_classes),
        setting=plan,
        **hyperparameters,
        **({"views": plan.make_views()} if chosen.draws_views else {}),
        train_mb_size=plan.batch_size,
        train_epochs=plan.epochs,
        eval_mb_size=BATCH_SIZE,
        device=device,
        plugins=[plugin],
        evaluator=EvaluationPlugin(loggers=[Silent()]),
    )


def main() -> None:
    """Run one study from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--method", required=True)
    parser.add_argument("--setting", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-experiences", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument(
        "--validation", action="store_true", help="judge all combinations on the validation split"
    )
    parser.add_argument("--out", type=Path, default=Path("results/gaussian"))
    add_run_arguments(parser)
    words = vars(parser.parse_args())
    out, threads = words.pop("out"), words.pop("threads")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    torch.set_num_threads(threads)
    command = ["python", "-m", "benchmarks.gaussian"]
    for name, value in words.items():
        shown = name not in ("dataset_root", "device") and value is not None and value is not False
        command += [f"--{name.replace('_', '-')}", *([] if value is True else [f"{value}"])] * shown
    provenance = origin_of(command, words["device"])
    result = study(**words)
    kind = "validation" if words["validation"] else "variants"
    name = f"{words['setting']}_{words['method']}_{kind}_seed{words['seed']}.json"
    print(f"wrote {save_json({**result, 'provenance': provenance}, out / name)}")


if __name__ == "__main__":
    main()
