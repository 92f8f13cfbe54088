"""One run: a method in a setting with a seed -> one JSON, written whole or not at all.

python -m benchmarks.run --method dlcpa-mocov2 --setting digits --seed 0 --out results

A run of DLCPA keeps checkpoints beside its result: killed and started again it goes on, to the same
numbers.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import shlex
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from avalanche.core import SupervisedPlugin
from avalanche.evaluation import PluginMetric
from avalanche.evaluation.metrics import ConfusionMatrix
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.templates import SupervisedTemplate

import avalanche_dlcpa
from avalanche_dlcpa import (
    DLCPAStrategy,
    NonFiniteLossError,
    SelfSupervisedLossPlugin,
    seed_everything,
)
from avalanche_dlcpa.accuracy_matrix import (
    accuracy_over_experiences,
    average_incremental_accuracy,
    backward_transfer,
    final_accuracy,
    forgetting,
)
from avalanche_dlcpa.metrics import predicted_classes, scenario_metrics
from avalanche_dlcpa.training_guards import all_finite
from benchmarks.analyses import ANALYSES
from benchmarks.cells import (
    FORMAT,
    Cell,
    Result,
    checkpoints_path,
    parse_changes,
    result_path,
)
from benchmarks.memory import kept_bytes, peak_bytes, reset_peak
from benchmarks.methods import METHODS
from benchmarks.settings import SETTINGS, Setting

PACKAGES = ("avalanche-dlcpa", "avalanche-lib", "torch", "torchvision", "numpy", "solo-learn")
ROOT = Path(__file__).resolve().parents[1]
CODE = (Path(avalanche_dlcpa.__file__).parent, Path(__file__).parent)
EVAL_BATCH_SIZE = 256
CHECKPOINT_MINUTES = 2.0  # besides those between experiences


def run_cell(
    cell: Cell,
    *,
    dataset_root: str | None = None,
    device: str = "cpu",
    on_experience: Callable[[int], None] = lambda learned: None,
    checkpoints: Path | None = None,
) -> Result:
    """Train and evaluate one cell.

    Args:
        cell: What to run.
        dataset_root: Folder of the data; None: Avalanche's default.
        device: Where to train.
        on_experience: Called with the number of experiences learned, after each.
        checkpoints: Folder from which a run of DLCPA by this very code goes on, and where it keeps
            checkpoints; None: it keeps none.

    Returns:
        The result, as `save_json` writes it.
    """
    origin = provenance(cell, device)  # of the code as it is now: a run may outlast a commit
    setting = SETTINGS[cell.setting]
    reset_peak(device)
    seed_everything(cell.seed)
    if cell.method in ANALYSES:
        found = ANALYSES[cell.method].run(
            setting,
            seed=cell.seed,
            dataset_root=dataset_root,
            device=device,
            **cell.hyperparameters,
        )
    else:
        found = _train_and_judge(
            cell,
            dataset_root=dataset_root,
            device=device,
            on_experience=on_experience,
            checkpoints=checkpoints and checkpoints / digest_of(*CODE),
        )
    return result_of(cell, found, origin)


def result_of(cell: Cell, found: dict[str, Any], origin: dict[str, Any]) -> Result:
    """A result as `save_json` writes it: what was run, what was found, and where it comes from."""
    setting = SETTINGS[cell.setting]
    return {
        "format": FORMAT,
        "method": cell.method,
        "setting": cell.setting,
        "seed": cell.seed,
        "changes": dict(cell.changes),
        "hyperparameters": cell.hyperparameters,
        "epochs": setting.epochs,
        "batch_size": cell.batch_size,
        "num_experiences": cell.num_experiences,
        "views": setting.views,
        **found,
        "provenance": origin,
    }


def _train_and_judge(
    cell: Cell,
    *,
    dataset_root: str | None,
    device: str,
    on_experience: Callable[[int], None],
    checkpoints: Path | None,
) -> Result:
    training = Training(cell, dataset_root=dataset_root, device=device)
    strategy, setting = training.strategy, SETTINGS[cell.setting]
    if checkpoints is not None and isinstance(strategy, DLCPAStrategy):
        strategy.resume(checkpoints, every_epochs=setting.epochs, every_minutes=CHECKPOINT_MINUTES)
    for learned in training.steps():
        on_experience(learned)
    return training.found()


def build_strategy(
    cell: Cell,
    setting: Setting,
    options: dict[str, Any],
    *,
    plugins: list[SupervisedPlugin],
    metrics: Iterable[PluginMetric[Any]] = (),
    device: str,
) -> SupervisedTemplate:
    """The strategy of a cell's method on a fresh network.

    Args:
        cell: Method and setting.
        setting: That of the cell, or what takes its place.
        options: Hyperparameters.
        plugins: Beside those of the method.
        metrics: To be kept.
        device: Where to train.
    """
    method = METHODS[cell.method]
    network = setting.make_network(setting.num_classes)
    if method.channels_last:
        network = network.to(memory_format=torch.channels_last)
    return method.build(
        network,
        setting=setting,
        **options,
        **({"views": setting.make_views()} if method.draws_views else {}),
        train_mb_size=cell.batch_size,
        train_epochs=setting.epochs,
        eval_mb_size=EVAL_BATCH_SIZE,
        device=device,
        plugins=plugins,
        evaluator=EvaluationPlugin(*metrics, loggers=[Silent()]),
    )


class Training:
    """The training of a cell: a strategy, its stream, and what is found on the way.

    Args:
        cell: A method, not an analysis.
        dataset_root: Folder of the data; None: Avalanche's default.
        device: Where to train.
    """

    def __init__(self, cell: Cell, *, dataset_root: str | None, device: str):
        self.cell, self.device = cell, device
        self.method, setting = METHODS[cell.method], SETTINGS[cell.setting]
        options = dict(cell.hyperparameters)
        self._stopwatch = _Stopwatch()
        plugins: list[SupervisedPlugin] = [self._stopwatch]
        is_given_ssl = "ssl" in options and not self.method.draws_views
        if is_given_ssl:
            weight = {"weight": options.pop("ssl_weight")} if "ssl_weight" in options else {}
            views = setting.make_views()
            plugins.append(SelfSupervisedLossPlugin(options.pop("ssl"), views=views, **weight))
        stream = setting.make_stream(
            augment=not (self.method.draws_views or is_given_ssl),
            validation_fraction=0.1 if cell.validation else 0.0,
            task_labels=self.method.needs_task_labels,
            dataset_root=dataset_root,
        )
        self._class_il, self._task_il = scenario_metrics()
        self._confusion = _Confusion(setting.num_classes)
        metrics = (self._class_il, self._task_il, self._confusion)
        self.strategy = build_strategy(
            cell, setting, options, plugins=plugins, metrics=metrics, device=device
        )
        self._judged_on = "valid_stream" if cell.validation else "test_stream"
        self.train_stream = stream.train_stream[: cell.num_experiences]
        self._judged = getattr(stream, self._judged_on)

    def steps(self) -> Iterator[int]:
        """Train and evaluate what was learned, step by step; yields how many experiences that is.

        Raises:
            NonFiniteLossError: The training diverged.
        """
        at_once = self.method.learns_at_once
        for step, experiences in enumerate([self.train_stream] if at_once else self.train_stream):
            learned = len(self.train_stream) if at_once else step + 1
            self.strategy.train(experiences, eval_streams=[])
            expect_finite(self.strategy, learned)
            self.strategy.eval(self._judged[:learned])
            yield learned

    def found(self) -> dict[str, Any]:
        """What a result holds of the experiences learned so far."""
        classes = [list(e.classes_in_this_experience) for e in self.train_stream]
        return {
            "judged_on": self._judged_on,
            "classes": classes,
            "class_il": {
                **summary_of(self._class_il.matrix(self._judged_on)),
                "confusion_matrix": self._confusion.counts(),
            },
            "task_il": summary_of(self._task_il.matrix(self._judged_on)),
            "training_seconds": self._stopwatch.seconds,
            "memory": {
                "kept_bytes": kept_bytes(self.strategy),
                "peak_bytes": peak_bytes(self.device),
                "keeps_samples": self.method.keeps_samples,
            },
        }


def expect_finite(strategy: SupervisedTemplate, learned: int) -> None:
    """Refuse to judge weights that are not finite: their accuracy would look like chance."""
    if not all_finite(strategy.model.parameters()):
        raise NonFiniteLossError(
            f"Expected finite weights after {learned} experiences, got NaN or infinite ones: the "
            "training diverged. Choose a lower learning rate or strength."
        )


class _Confusion(PluginMetric[Any]):
    """Counts of (true class, predicted class) in Class-IL, of the last evaluation."""

    def __init__(self, num_classes: int):
        super().__init__()
        self._matrix = ConfusionMatrix(num_classes)

    def counts(self) -> list[list[int]]:
        """Rows: true class, columns: predicted class, by label."""
        return self._matrix.result().int().tolist()

    def before_eval(self, strategy: SupervisedTemplate) -> None:
        self._matrix.reset()

    def after_eval_iteration(self, strategy: SupervisedTemplate) -> None:
        self._matrix.update(strategy.mb_y, predicted_classes(strategy.mb_output))

    def reset(self) -> None:
        """Nothing: it counts over a whole evaluation."""

    def result(self) -> None:
        """Nothing to log."""


class _Stopwatch(SupervisedPlugin):
    """The seconds of training, also over several lives of a run, without writing its last word."""

    def __init__(self) -> None:
        super().__init__()
        self._before, self._start = 0.0, None

    @property
    def seconds(self) -> float:
        """So far."""
        now = 0.0 if self._start is None else time.perf_counter() - self._start
        return self._before + now

    def before_training(self, strategy: Any, **kwargs: Any) -> None:
        """Start."""
        self._start = time.perf_counter()

    def after_training(self, strategy: Any, **kwargs: Any) -> None:
        """Stop."""
        self._before, self._start = self.seconds, None

    def state_dict(self) -> dict[str, float]:
        """For checkpoints."""
        return {"seconds": self.seconds}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from those of an earlier life."""
        self._before = state["seconds"]
        self._start = None if self._start is None else time.perf_counter()


class Silent:
    """A logger that says nothing; Avalanche warns where there is none."""

    def log_metrics(self, values: Any) -> None:
        """Take the metric values."""


def summary_of(matrix: np.ndarray) -> dict[str, Any]:
    """An accuracy matrix (T, T) and what follows from it, as JSON takes it."""
    return {
        "accuracy_matrix": [_numbers(row) for row in matrix],
        "ACC": _number(final_accuracy(matrix)),
        "AverageIncrementalACC": _number(average_incremental_accuracy(matrix)),
        "BWT": _number(backward_transfer(matrix)),
        "Forgetting": _number(forgetting(matrix)),
        "accuracy_over_experiences": _numbers(accuracy_over_experiences(matrix)),
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)  # NaN is no JSON


def _numbers(values: Any) -> list[float | None]:
    return [_number(value) for value in values]


def provenance(cell: Cell, device: str) -> dict[str, Any]:
    """Where the numbers of a cell come from: command, versions, commit and kind of machine."""
    return origin_of(["python", "-m", "benchmarks.run", *cell.words], device)


def origin_of(command: list[str], device: str) -> dict[str, Any]:
    """Where the numbers of a command come from: versions, commit and kind of machine."""
    return {
        "command": shlex.join(command),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "commit": commit(),
        "device": device,
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def commit() -> str:
    """The commit, with a plus where the code of package or benchmarks differs from it."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], capture_output=True, text=True, check=True, cwd=ROOT
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "avalanche_dlcpa", "benchmarks/*.py")
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def digest_of(*folders: Path) -> str:
    """Of all Python files below some folders: the same name for the same code, commit or not."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def save_json(content: Any, path: Path) -> Path:
    """Write a file, whole or not at all, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(_text(content))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _text(content: Any) -> str:
    """JSON with a line for each innermost list, to be read by people, too."""
    text = json.dumps(content, indent=1, allow_nan=False)
    return re.sub(r"\[[^\[\]{}\"]*\]", lambda found: " ".join(found[0].split()), text)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that single runs and grids share."""
    parser.add_argument("--dataset-root", help="folder of data already on disk")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--threads", type=int, default=1, help="of torch; small networks gain nothing from more"
    )


def main() -> None:
    """Run one cell from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--method", required=True)
    parser.add_argument("--setting", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="changes")
    parser.add_argument("--ssl", help="give a baseline this self-supervised loss")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument(
        "--validation",
        action="store_true",
        help="a trial: hold out the validation split and judge on it",
    )
    parser.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep checkpoints until the result is written, and go on from the last (DLCPA)",
    )
    add_run_arguments(parser)
    words = parser.parse_args()
    # Avalanche 0.6.0 on a current numpy and torch warns of what will be removed one day.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    torch.set_num_threads(words.threads)
    changes = parse_changes(words.changes)
    if words.ssl:
        changes["ssl"] = words.ssl
    try:
        pairs = tuple(sorted(changes.items()))
        cell = Cell(words.method, words.setting, words.seed, pairs, words.validation)
        cell.hyperparameters  # noqa: B018 - refuses what was never chosen, before any work
    except ValueError as error:
        parser.error(str(error))
    checkpoints = checkpoints_path(cell, words.out)
    result = run_cell(
        cell,
        dataset_root=words.dataset_root,
        device=words.device,
        checkpoints=checkpoints if words.resume else None,
        on_experience=lambda learned: print(f"learned {learned} experiences", flush=True),
    )
    print(f"wrote {save_json(result, result_path(cell, words.out))}")
    if words.resume and checkpoints.is_dir():
        shutil.rmtree(checkpoints)


if __name__ == "__main__":
    main()
