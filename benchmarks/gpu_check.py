"""Does a CUDA graph give the weights of eager iterations, and how far does the paper's run get?

    python -m benchmarks.gpu_check graph --dataset-root DATA --seconds 150 --out results
    python -m benchmarks.gpu_check row --dataset-root DATA --seconds 300 --out results

Parts of ``benchmarks/gpu_check.sh``. ``graph``: for each head and precision, 50 iterations replayed
as a graph and 50 run hook by hook, from the same weights on the same mini-batches, and each replay
beside the same iteration without it (see `benchmarks.step_comparison`). ``row``: the
paper's 10-split CIFAR-100 row (MoCoV2, batch 32, 100 epochs a task, full width), as many tasks as
fit, with the result so far written after every task. They are two processes, since an error on a
GPU can leave a process unable to use it. On a CPU, a dry run does the same in small, with digits;
without data so does ``row``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from torch.backends import cudnn

from avalanche_dlcpa import seed_everything
from avalanche_dlcpa.cuda_graph import BACKENDS, Function
from avalanche_dlcpa.precision import PRECISIONS
from benchmarks.cells import Cell, result_path
from benchmarks.origin import origin_of, provenance
from benchmarks.run import result_of
from benchmarks.step_comparison import StepComparison
from benchmarks.throughput_setup import make_strategy, one_experience
from benchmarks.training import Training
from benchmarks.whole_files import save_json

ITERATIONS = 50
TOLERANCE = 1e-2  # of the change that an iteration made, relative
MOST_NOISE = 0.1  # of two eager runs of an iteration
HEADS = ("mocov2", "simclr", "byol")
ROW = ("mocov2", "bf16")  # of the paper's run here
COMPARISONS = "graph.json"
NEXT_TASK = 1.1  # its time over the mean of those so far: there is more to evaluate


class WithoutCapture:
    """Stands in for CUDA's capture in a dry run: the step runs on the tensors that would stay."""

    def __init__(self, device: torch.device):
        pass

    def warm_up(self, run: Function) -> tuple[torch.Tensor, ...]:
        """Run the step."""
        return run()

    def capture(self, run: Function) -> Function:
        """The step itself."""
        return run


def compare(
    head: str,
    precision: str,
    *,
    iterations: int,
    width: int,
    device: str,
    dataset_root: str | None,
) -> dict[str, Any]:
    """Train a graph and hooks on the same mini-batches, with kernels that add in a fixed order.

    Returns:
        ``difference``, the norm of the difference of all weights after training over the norm of
        what training changed; ``eager_difference``, the same of two trainings hook by hook: where
        it is not 0, the first tells nothing; ``step_difference`` and ``step_noise``, those of
        `StepComparison`, over so many replays ``compared``; the number of iterations that were
        replayed; ``eager_ms`` and ``graph_ms``, median milliseconds of an iteration.

    Raises:
        FloatingPointError: A training ended with weights that are not finite.
    """
    stream = one_experience(dataset_root, iterations, batch_size=32)
    weights, times, steps = [], [], StepComparison()
    with cudnn.flags(enabled=True, deterministic=True):
        for cuda_graph, others in ((False, []), (False, []), (True, []), (True, [steps])):
            seed_everything(0)
            clock = _Iterations()
            strategy = make_strategy(
                head=head,
                network="resnet18",
                width=width,
                layout="channels_last",
                plugins=[clock, *others],
                precision=precision,
                train_mb_size=32,
                device=device,
                cuda_graph=cuda_graph,
            )
            start = _all_weights(strategy)
            strategy.train(stream.train_stream[0], eval_streams=[])
            weights.append(_all_weights(strategy))
            if not weights[-1].isfinite().all():
                raise FloatingPointError(
                    f"Expected finite weights after training with cuda_graph={cuda_graph}, got "
                    "others."
                )
            times.append(1e3 * statistics.median(clock.seconds))
    eager_difference, difference, _ = (
        float((own - weights[0]).norm() / (weights[0] - start).norm()) for own in weights[1:]
    )
    return {
        "head": head,
        "precision": precision,
        "iterations": len(clock.seconds) + 1,
        "replayed": clock.num_replays,
        "difference": difference,
        "eager_difference": eager_difference,
        "compared": steps.num_compared,
        "step_difference": steps.difference,
        "step_noise": steps.noise,
        "eager_ms": times[1],
        "graph_ms": times[2],
    }


def _all_weights(strategy: Any) -> torch.Tensor:
    """Of both learners and the head; classifiers are only added in training."""
    parts = (strategy.model.plastic, strategy.model.stable, strategy.ssl)
    weights = [weight for part in parts for weight in part.parameters()]
    return torch.cat([weight.detach().flatten().double().cpu() for weight in weights])


class _Iterations(SupervisedPlugin):
    """Seconds between iterations, and how many were replayed."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.num_replays = 0
        self._since: float | None = None

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """Take the time since the last one."""
        if strategy.device.type == "cuda":
            torch.cuda.synchronize(strategy.device)
        now = time.perf_counter()
        if self._since is not None:
            self.seconds.append(now - self._since)
        self._since = now
        self.num_replays = 0 if strategy._graph is None else strategy._graph.num_replays


def is_wrong(comparison: dict[str, Any]) -> bool:
    """Whether a replay gave another state, beyond what two eager runs of an iteration differ by.

    So is a comparison that broke off, or one whose eager runs differ by so much that it tells
    nothing.
    """
    if "error" in comparison or not comparison["compared"]:
        return True
    noise = comparison["step_noise"]
    return not (noise < MOST_NOISE and comparison["step_difference"] < max(TOLERANCE, 3 * noise))


def compare_all(
    pairs: Iterable[tuple[str, str]], *, until: float, **options: Any
) -> Iterator[dict[str, Any]]:
    """Compare for each head and precision, and print; one that breaks off stops no other.

    Args:
        pairs: Of a head and a precision.
        until: No comparison begins after this time of `time.perf_counter`.
        options: Of `compare`.
    """
    for head, precision in pairs:
        if time.perf_counter() > until:
            print(f"no time for {head} {precision}", flush=True)
            continue
        try:
            found = compare(head, precision, **options)
        except Exception as error:  # of a machine that nobody has seen: the rest is wanted
            traceback.print_exc()
            found = {"head": head, "precision": precision, "error": repr(error)}
            words = f"broke off: {error!r}"
        else:
            words = (
                f"{found['replayed']} of {found['iterations']} iterations replayed, "
                f"{found['eager_ms']:.2f} -> {found['graph_ms']:.2f} ms; a replay differs by at "
                f"most {found['step_difference']:.1e} of what an iteration changes, two eager runs "
                f"by {found['step_noise']:.1e}; after all {found['difference']:.1e} of what "
                f"training changed, two eager ones {found['eager_difference']:.1e}"
            )
        print(f"{head} {precision}: {words}", flush=True)
        yield found


def row(
    cell: Cell,
    *,
    device: str,
    dataset_root: str | None,
    seconds: float,
    iteration_ms: float = 0.0,
) -> Iterator[Any]:
    """Train a cell task by task as long as the next one is likely to fit; yields results so far.

    Args:
        cell: What to train.
        device: Where.
        dataset_root: Folder of the data.
        seconds: For all tasks that it trains.
        iteration_ms: What an iteration is known to take: whether the first task is likely to fit.

    Raises:
        TimeoutError: It is not.
    """
    start = time.perf_counter()
    origin, values = provenance(cell, device), cell.hyperparameters
    seed_everything(cell.seed)
    training = Training(cell, values, dataset_root=dataset_root, device=device)
    strategy, images = training.strategy, len(training.train_stream[0].dataset)
    iterations = strategy.train_epochs * math.ceil(images / strategy.train_mb_size)
    expected = 1e-3 * iteration_ms * iterations
    if expected > seconds:
        raise TimeoutError(
            f"Expected the first task to fit in {seconds:.0f} s, got {expected:.0f} s at "
            f"{iteration_ms:.1f} ms an iteration: give it more, see GPU_CHECK_SECONDS."
        )
    for learned in training.steps():
        spent = time.perf_counter() - start
        yield result_of(cell, values, {**training.found(), "num_experiences": learned}, origin)
        if spent + NEXT_TASK * spent / learned > seconds:
            return


def check_graph(*, device: str, dataset_root: str | None, seconds: float, out: Path) -> None:
    """Compare heads and precisions as long as there is time, and write after each.

    Raises:
        SystemExit: A graph gave other weights, or a comparison broke off.
    """
    until = time.perf_counter() + seconds
    is_dry = torch.device(device).type == "cpu"
    origin = origin_of(["bash", "benchmarks/gpu_check.sh"], device)
    comparisons: list[dict[str, Any]] = []
    for found in compare_all(
        itertools.product(HEADS[:1] if is_dry else HEADS, PRECISIONS),
        until=until,
        iterations=6 if is_dry else ITERATIONS,
        width=4 if is_dry else 64,
        device=device,
        dataset_root=dataset_root,
    ):
        comparisons.append(found)
        save_json({"comparisons": comparisons, "provenance": origin}, out / COMPARISONS)
    wrong = [comparison for comparison in comparisons if is_wrong(comparison)]
    if wrong:
        raise SystemExit(f"Expected replayed iterations to give the weights of eager ones: {wrong}")


def check_row(*, device: str, dataset_root: str | None, seconds: float, out: Path) -> None:
    """Train the paper's row as far as it gets, and write after each task.

    Raises:
        SystemExit: Not even the first task is likely to fit.
    """
    is_dry = dataset_root is None
    method, setting = ("dlcpa-a", "digits") if is_dry else ("dlcpa-mocov2", "cifar100-10")
    cell = Cell(method, setting, 0, (("precision", "bf16"),))
    path = result_path(cell, out)
    results = row(
        cell,
        device=device,
        dataset_root=dataset_root,
        seconds=seconds,
        iteration_ms=0.0 if is_dry else known_iteration_ms(out / COMPARISONS),
    )
    try:
        for result in results:
            save_json(result, path)
            print(
                f"{result['num_experiences']} tasks, {result['training_seconds']:.0f} s of "
                f"training, Class-IL {result['class_il']['ACC']:.4f}, Task-IL "
                f"{result['task_il']['ACC']:.4f}, wrote {path}",
                flush=True,
            )
    except TimeoutError as error:
        raise SystemExit(str(error)) from None


def known_iteration_ms(path: Path) -> float:
    """What an iteration of the row took in a comparison; 0 where that was not measured."""
    if not path.exists():
        return 0.0
    comparisons = json.loads(path.read_text(encoding="utf-8"))["comparisons"]
    own = (c for c in comparisons if (c["head"], c["precision"]) == ROW)
    return float(sum(c.get("graph_ms", 0.0) for c in own))


def main() -> None:
    """Compare or train, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("part", choices=["graph", "row"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dataset-root", help="folder of CIFAR-100; the dry run needs none")
    parser.add_argument("--seconds", type=float, default=500.0, help="for this part")
    parser.add_argument(
        "--since", type=float, default=time.time(), help="when they began, since 1970; default: now"
    )
    parser.add_argument("--out", type=Path, default=Path("results"))
    words = parser.parse_args()
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", message="No loggers specified")
    if torch.device(words.device).type == "cpu":
        BACKENDS["cpu"] = WithoutCapture
        print("dry run on the CPU: small networks, digits, and no capture")
    check = check_graph if words.part == "graph" else check_row
    check(
        device=words.device,
        dataset_root=words.dataset_root,
        seconds=words.seconds - (time.time() - words.since),
        out=words.out,
    )


if __name__ == "__main__":
    main()
