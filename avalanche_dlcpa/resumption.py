"""Resume a killed run to the bit: the same script, started again, goes on where it was.

Avalanche's own loop stays as it is. The calls of `train` and `eval` that a script made before the
checkpoint are passed over; the experience in progress is set up as ever, its finished epochs are
left out, its loader is run up to the mini-batch of the checkpoint, and then everything is set to
what it was.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from avalanche.training.templates import SupervisedTemplate

from avalanche_dlcpa.checkpoint import CheckpointFolder, State
from avalanche_dlcpa.experiences import classes_of
from avalanche_dlcpa.random_states import random_states, set_random_states
from avalanche_dlcpa.snapshot import NoPlainStateError, capture, plain_results, restore
from avalanche_dlcpa.training_guards import preserved_random_states


@dataclasses.dataclass
class _Call:
    """A call of the script that has ended: an experience trained, or a stream evaluated.

    Attributes:
        name: What was called with what.
        results: The metric values that are new since the call before.
    """

    name: str
    results: dict[str, Any]


@dataclasses.dataclass
class _Run:
    """Where a run with checkpoints is.

    Attributes:
        folder: Of its checkpoints.
        every_epochs: Epochs between checkpoints.
        every_seconds: Seconds between checkpoints inside an epoch; None: none there.
        fingerprint: What must be the same when it is resumed.
        calls: Those that have ended, from the start of the script on.
        num_passed: How many of them the script, started again, has come by.
        results: The evaluator's values after the calls so far.
        restored: The checkpoint, until everything in it has been used.
        is_in_train: Whether `train` is running.
        epoch_start: Random states when the present epoch began to load.
        last_write: When the last checkpoint was written, or training began.
        num_written: How many of the calls the last checkpoint holds.
    """

    folder: CheckpointFolder
    every_epochs: int
    every_seconds: float | None
    fingerprint: dict[str, Any]
    calls: list[_Call] = dataclasses.field(default_factory=list)
    num_passed: int = 0
    results: dict[str, Any] = dataclasses.field(default_factory=dict)
    restored: State | None = None
    is_in_train: bool = False
    epoch_start: dict[str, Any] = dataclasses.field(default_factory=dict)
    last_write: float = dataclasses.field(default_factory=time.monotonic)
    num_written: int = 0

    @property
    def is_replaying(self) -> bool:
        """Whether the script is still at calls that ended before the checkpoint."""
        return self.num_passed < len(self.calls)

    @property
    def position(self) -> dict[str, Any] | None:
        """Where in an experience to go on, as soon as it has been set up."""
        return None if self.restored is None else self.restored["position"]

    def pass_over(self, name: str) -> None:
        """Come by a call that ended before the checkpoint."""
        call = self.calls[self.num_passed]
        self.expect(name, call.name)
        self.num_passed += 1
        self.results = self.results | call.results

    def expect(self, name: str, expected: str) -> None:
        """Refuse a script that does something else than the run of the checkpoint.

        Raises:
            ValueError: It does.
        """
        if name != expected:
            raise ValueError(
                f"Expected the script to {expected}, as in the run of the checkpoints in "
                f"'{self.folder.path}', got a script that goes on to {name}: start the same "
                "script, or name another folder to start anew."
            )

    def note(self, name: str, results: dict[str, Any]) -> None:
        """Note a call that has just ended."""
        old = self.results
        new = {k: v for k, v in results.items() if k not in old or old[k] is not v}
        self.calls.append(_Call(name, plain_results(new)))
        self.num_passed = len(self.calls)
        self.results = dict(results)


class _RestOfEpoch:
    """A loader from where a checkpoint was written; its first iteration sets the random states.

    Args:
        loader: The loader, as it was made for the experience.
        position: Where the checkpoint was written.
        now: Random states of the checkpoint.
        device: Where the strategy trains.
    """

    def __init__(
        self, loader: Any, position: dict[str, Any], now: dict[str, Any], device: torch.device
    ):
        self.loader, self.position, self.now, self.device = loader, position, now, device

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        set_random_states(self.position["epoch_start"], self.device)
        batches = iter(self.loader)
        labels = None
        for _ in range(self.position["iteration"]):
            labels = _checksum(next(batches)[1])
        if labels != self.position["labels"]:
            raise ValueError(
                "Expected the stream to deliver the samples of the checkpoint in their order, got "
                "others: pass the same stream, batch size and loader arguments as before."
            )
        set_random_states(self.now, self.device)
        yield from batches


class ResumableTemplate(SupervisedTemplate):
    """Avalanche's template with checkpoints at any moment; see `resume`.

    A strategy says with `state_dict`, `load_state_dict` and `fingerprint` what it learns.
    """

    _run: _Run | None = None

    def resume(
        self, folder: str | Path, *, every_epochs: int = 1, every_minutes: float | None = 10.0
    ) -> int:
        """Keep checkpoints of this run in a folder, and go on from the last one if there is any.

        Called once, before the loop over experiences, which stays as it is. Started again after it
        was killed at any moment, the same script ends with the same weights and metrics, on a CPU
        to the bit: calls of `train` and `eval` that had ended return at once what they had
        returned, and the experience in progress goes on amid its epoch. There is a checkpoint after
        every call of `train` and `eval`, too. Code of the script between those calls runs again,
        and sees the strategy as it is in the checkpoint.

        One folder holds one run: give each seed and each setting its own. Random states are those
        of Python, NumPy and torch; generators of the user's own are not kept.

        Args:
            folder: Where the checkpoints are, the last two; it is made when the first is written.
            every_epochs: Epochs between two checkpoints.
            every_minutes: Minutes between two inside an epoch, 0 for one after each iteration;
                None: none there.

        Returns:
            How many experiences have been learned already.

        Raises:
            ValueError: Training has begun; checkpoints of another run, or only damaged ones; a
                plugin or metric with a state that a checkpoint cannot hold; arguments out of range.

        Example::

            strategy = DLCPAStrategy(...)
            strategy.resume("runs/seed0")
            for experience in benchmark.train_stream:
                strategy.train(experience)
                strategy.eval(benchmark.test_stream)
        """
        if self._run is not None or self.clock.total_iterations > 0:
            raise ValueError(
                "Expected `resume` once and before training, got a strategy that has begun: call "
                "it right after building the strategy."
            )
        if every_epochs < 1 or (every_minutes is not None and every_minutes < 0):
            raise ValueError(
                "Expected `every_epochs` to be at least 1 and `every_minutes` at least 0, got "
                f"{every_epochs} and {every_minutes}."
            )
        self._captured_plugins()  # refuses now what could not be kept later
        run = _Run(
            folder=CheckpointFolder(folder),
            every_epochs=every_epochs,
            every_seconds=None if every_minutes is None else 60 * every_minutes,
            fingerprint=self.fingerprint(),
        )
        run.restored = run.folder.read(lambda state: _expect_same(state, run.fingerprint))
        if run.restored is not None:
            run.calls = [_Call(**call) for call in run.restored["calls"]]
            run.num_written = len(run.calls)
            self._load(run.restored, amid=False)
        self._run = run
        return int(self.clock.train_exp_counter)

    def fingerprint(self) -> dict[str, Any]:
        """What a run and its checkpoint must have in common, as plain data by name."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Everything that training changes, as tensors, numbers and strings in nested dicts."""
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` told, between two experiences or amid the same one."""
        raise NotImplementedError

    # The calls of a script ----------------------------------------------------------------------

    def train(self, experiences: Any, eval_streams: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Train; see Avalanche's `SupervisedTemplate`, and `resume`."""
        run = self._run
        if run is None:
            return super().train(experiences, eval_streams, **kwargs)
        if kwargs.get("persistent_workers"):
            raise ValueError(
                "Expected no persistent_workers in a run with checkpoints, got True: their random "
                "states cannot be kept."
            )
        wanted = list(experiences) if isinstance(experiences, Iterable) else [experiences]
        rest = self._not_yet_learned(run, wanted)
        if wanted and not rest:
            return dict(run.results)
        streams = [wanted] if eval_streams is None else eval_streams
        run.is_in_train = True
        try:
            results = super().train(rest, streams, **kwargs)
        finally:
            run.is_in_train = False
        self._write(run)
        return results

    def _not_yet_learned(self, run: _Run, experiences: list[Any]) -> list[Any]:
        rest = list(experiences)
        while rest and run.is_replaying:
            run.pass_over(_training_of(rest.pop(0)))
            self._leave_replay(run)
        if rest and run.position is not None:
            run.expect(_training_of(rest[0]), run.position["experience"])
        return rest

    def _leave_replay(self, run: _Run) -> None:
        """After the last call that had ended, be as it was then, but for an experience begun."""
        if run.is_replaying or run.restored is None:
            return
        set_random_states(run.restored["random"], self.device)
        if run.position is None:
            run.restored = None

    def eval(self, exp_list: Any, **kwargs: Any) -> dict[str, Any]:
        """Evaluate; see Avalanche's `SupervisedTemplate`, and `resume`.

        Changes no parameter, buffer or training flag, and leaves all random states as they were, so
        that training does not depend on how often one evaluates.
        """
        run = self._run
        if run is None or run.is_in_train:
            if run is not None and run.position is not None:
                return {}  # an evaluation before the point where the run goes on: it had ended
            return self._eval(exp_list, **kwargs)
        exp_list = list(exp_list) if isinstance(exp_list, Iterator) else exp_list
        name = _evaluation_of(exp_list)
        if run.is_replaying:
            run.pass_over(name)
            self._leave_replay(run)
            return dict(run.results)
        if run.position is not None:
            run.expect(name, run.position["experience"])
        results = self._eval(exp_list, **kwargs)
        run.note(name, results)
        self._write(run)
        return results

    def _eval(self, exp_list: Any, **kwargs: Any) -> dict[str, Any]:
        with preserved_random_states(self.device):
            return super().eval(exp_list, **kwargs)

    # Avalanche's loop ---------------------------------------------------------------------------

    def _train_exp(self, experience: Any, eval_streams: Any = None, **kwargs: Any) -> None:
        """Train on an experience, without the epochs that had ended before the checkpoint."""
        position = None if self._run is None else self._run.position
        if position is None:
            super()._train_exp(experience, eval_streams, **kwargs)
            return
        num_epochs = self.train_epochs
        self.train_epochs = num_epochs - position["epoch"]
        try:
            super()._train_exp(experience, eval_streams, **kwargs)
        finally:
            self.train_epochs = num_epochs

    def _before_training_epoch(self, **kwargs: Any) -> None:
        super()._before_training_epoch(**kwargs)
        run = self._run
        if run is None:
            return
        if run.position is not None:
            self._go_on(run)
            return
        run.epoch_start = random_states(self.device)
        is_due = self.clock.train_exp_epochs % run.every_epochs == 0
        if is_due and (self.clock.train_exp_epochs > 0 or len(run.calls) > run.num_written):
            self._write(run, amid=True)

    def _go_on(self, run: _Run) -> None:
        """Amid an experience that has been set up, become what the checkpoint holds."""
        state, position = run.restored, run.position
        assert state is not None
        assert position is not None
        self.train_epochs += position["epoch"]  # the loop over the remaining ones has begun
        self._load(state, amid=True)
        self.dataloader: Any = _RestOfEpoch(self.dataloader, position, state["random"], self.device)
        run.epoch_start = position["epoch_start"]
        run.restored = None

    def _after_training_epoch(self, **kwargs: Any) -> None:
        if isinstance(self.dataloader, _RestOfEpoch):
            self.dataloader = self.dataloader.loader
        super()._after_training_epoch(**kwargs)

    def _after_training_iteration(self, **kwargs: Any) -> None:
        super()._after_training_iteration(**kwargs)
        run = self._run
        if run is None or run.every_seconds is None:
            return
        if time.monotonic() - run.last_write >= run.every_seconds:
            self._write(run, amid=True)

    def _after_training_exp(self, **kwargs: Any) -> None:
        super()._after_training_exp(**kwargs)
        if self._run is not None:
            self._run.note(_training_of(self.experience), self.evaluator.get_last_metrics())

    # Checkpoints --------------------------------------------------------------------------------

    def _write(self, run: _Run, *, amid: bool = False) -> None:
        """Write a checkpoint of this moment, if it can be written."""
        try:
            state = {
                "fingerprint": run.fingerprint,
                "learned": self.state_dict(),
                "plugins": self._captured_plugins(),
                "stop": self._stop_training,
                "random": random_states(self.device),
                "calls": [dataclasses.asdict(call) for call in run.calls],
                "position": self._position(run) if amid else None,
            }
        except NoPlainStateError as error:
            warnings.warn(f"No checkpoint was written. {error}", stacklevel=2)
            return
        run.folder.write(state)
        run.last_write, run.num_written = time.monotonic(), len(run.calls)

    def _position(self, run: _Run) -> dict[str, Any]:
        iteration = self.clock.train_epoch_iterations
        return {
            "experience": _training_of(self.experience),
            "epoch": self.clock.train_exp_epochs,
            "iteration": iteration,
            "labels": _checksum(self.mb_y) if iteration else None,
            "epoch_start": run.epoch_start,
        }

    def _load(self, state: State, *, amid: bool) -> None:
        learned = state["learned"]
        self.model.to(self.device)
        self.load_state_dict(learned)
        names = [type(plugin).__name__ for plugin in self.plugins]
        assert names == [name for name, _ in state["plugins"]]  # part of the fingerprint
        for plugin, (_, saved) in zip(self.plugins, state["plugins"], strict=True):
            restore(plugin, saved)
        if amid:
            self._stop_training = state["stop"]

    def _captured_plugins(self) -> list[tuple[str, Any]]:
        names = [type(plugin).__name__ for plugin in self.plugins]
        return [(n, capture(p, n)) for n, p in zip(names, self.plugins, strict=True)]


def _training_of(experience: Any) -> str:
    """A call of `train` in words, such as "train on experience 2 of train (300 samples, ...)"."""
    classes, tasks = classes_of(experience), sorted(set(getattr(experience, "task_labels", [0])))
    return (
        f"train on experience {experience.current_experience} of "
        f"{experience.origin_stream.name} ({len(experience.dataset)} samples of classes {classes}, "
        f"tasks {tasks})"
    )


def _evaluation_of(exp_list: Any) -> str:
    """A call of `eval` in words, such as "evaluate 3 experiences of test (300 samples)"."""
    experiences = list(exp_list) if isinstance(exp_list, Iterable) else [exp_list]
    names = sorted({experience.origin_stream.name for experience in experiences})
    num_samples = sum(len(experience.dataset) for experience in experiences)
    numbers = [experience.current_experience for experience in experiences]
    which = f"{min(numbers)} to {max(numbers)}" if numbers else "none"
    return (
        f"evaluate {len(experiences)} experiences ({which}) of {', '.join(names)} "
        f"({num_samples} samples)"
    )


def _checksum(labels: Any) -> int:
    return zlib.crc32(labels.cpu().numpy().tobytes())


def _expect_same(state: State, fingerprint: dict[str, Any]) -> None:
    found = state.get("fingerprint", {})
    different = [
        name for name in [*fingerprint, *found] if fingerprint.get(name) != found.get(name)
    ]
    if different:
        name = different[0]
        raise ValueError(
            f"It is of another run: it has {name} {found.get(name)}, and this strategy "
            f"{fingerprint.get(name)}."
        )
