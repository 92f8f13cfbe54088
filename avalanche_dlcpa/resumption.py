"""Resume a killed run to the bit: the same script, started again, goes on where it was.

Avalanche's own loop stays as it is. The calls of `train` and `eval` that a script made before the
checkpoint are passed over; the experience in progress is set up as ever, its finished epochs are
left out, its loader is run up to the mini-batch of the checkpoint, and then everything is set to
what it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from avalanche.training.templates import SupervisedTemplate

from avalanche_dlcpa.checkpoint import CheckpointFolder, State
from avalanche_dlcpa.files import first_line
from avalanche_dlcpa.learned_state import own_tensors
from avalanche_dlcpa.optimizer import OtherGroupsError
from avalanche_dlcpa.random_states import (
    digest_of_states,
    preserved_random_states,
    random_states,
    set_random_states,
)
from avalanche_dlcpa.run_record import (
    Call,
    RestOfEpoch,
    RunRecord,
    checksum_of_labels,
    evaluation_of,
    expect_same,
    training_of,
)
from avalanche_dlcpa.snapshot import NoPlainStateError, capture, objects_in, plain, restore


class ResumableTemplate(SupervisedTemplate):
    """Avalanche's template with checkpoints at any moment; see `resume`.

    A strategy says with `state_dict`, `load_state_dict` and `fingerprint` what it learns.
    """

    _run: RunRecord | None = None
    _loaded_labels: Any = None
    train_epochs: int

    def resume(
        self, folder: str | Path, *, every_epochs: int = 1, every_minutes: float | None = 10.0
    ) -> int:
        """Keep checkpoints of this run in a folder, and go on from the last one if there is any.

        Called once, before the loop over experiences, which stays as it is. Started again after it
        was killed at any moment, the same script ends with the same weights and metrics, on a CPU
        to the bit: calls of `train` and `eval` that had ended return at once what they had
        returned, and the experience in progress goes on amid its epoch. There is a checkpoint after
        every call of `train` and `eval`, too. Code of the script between those calls runs again,
        and sees the strategy as it is in the checkpoint; `is_replaying` tells it so.

        One folder holds one run: give each seed and each setting its own. A copy of the strategy
        (`copy.deepcopy`, pickle, Avalanche's `save_checkpoint`) writes no checkpoints.

        Kept are parameters and buffers, plain attributes of layers (a counter, the rate of a
        dropout), which parameters take no gradient and which layers are in training,
        ``supervised_weight``, plugins and metrics, and the random states of Python, NumPy and
        torch. Not kept, so that a run which changes them does not go on to the bit: generators of
        the user's own, globals, buffers that are not persistent, tensors and objects that layers
        hold besides, and attributes that a strategy of the user's own class adds, unless its
        `state_dict` and `load_state_dict` have them.

        Args:
            folder: Where the checkpoints are, the last two; it is made, and locked against other
                processes as long as this strategy lives.
            every_epochs: Epochs between two checkpoints.
            every_minutes: Minutes between two inside an epoch, 0 for one after each iteration;
                None: none there.

        Returns:
            How many experiences have been learned already.

        Raises:
            ValueError: Training has begun; a folder that cannot be written, or that another process
                uses; checkpoints of another run, or only damaged ones; a plugin or metric with a
                state that a checkpoint cannot hold; arguments out of range.

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
        plugins = self._captured_plugins()  # refuses now what could not be kept later
        plain(self.state_dict(), "the strategy")
        run = RunRecord(
            folder=CheckpointFolder(folder),
            every_epochs=every_epochs,
            every_seconds=None if every_minutes is None else 60 * every_minutes,
            fingerprint=plain(self.fingerprint(), "the strategy"),
            start=digest_of_states(random_states(self.device)),
            objects=_objects_of(plugins),
        )
        run.folder.lock()
        run.folder.expect_writable()
        run.restored = run.folder.read(lambda state: expect_same(state, run.fingerprint))
        if run.restored is not None:
            run.calls = [Call(**call) for call in run.restored["calls"]]
            run.num_written = len(run.calls)
            if run.restored["start"] != run.start:
                warnings.warn(
                    f"The run in '{run.folder.path}' started from other random states: it goes on "
                    "with its own. For another seed, name another folder.",
                    stacklevel=2,
                )
            with contextlib.suppress(OtherGroupsError):  # the script adds them, as it did before
                self._load(run.restored)
        self._run = run
        return int(self.clock.train_exp_counter)

    @property
    def is_replaying(self) -> bool:
        """Whether the script, started again, has not come by the moment of the checkpoint yet.

        The strategy is then as it was at that moment, and what a script does between two calls,
        such as exporting the model, was done in an earlier life.
        """
        run = self._run
        return run is not None and (run.is_replaying or run.restored is not None)

    def fingerprint(self) -> dict[str, Any]:
        """What a run and its checkpoint must have in common, as plain data by name."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Everything that training changes, as tensors, numbers and strings in nested dicts."""
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` told, between two experiences or amid the same one."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """All but the run: a copy must not write into the folder of this one."""
        return {**self.__dict__, "_run": None}

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
        if rest:
            run.calls[-1].random = random_states(self.device)
        self._write(run)
        return results

    def _not_yet_learned(self, run: RunRecord, experiences: list[Any]) -> list[Any]:
        rest = list(experiences)
        while rest and run.is_replaying:
            run.pass_over(training_of(rest.pop(0)), self.device)
            self._leave_replay(run)
        if rest and run.position is not None:
            run.expect(training_of(rest[0]), run.position["experience"])
        return rest

    def _leave_replay(self, run: RunRecord) -> None:
        """After the last call that had ended, be as it was then, but for an experience begun."""
        if run.is_replaying or run.restored is None:
            return
        if run.position is None:  # else `_go_on` does it
            self._load(run.restored)  # the script may have changed what it had changed
            set_random_states(run.restored["random"], self.device)
            run.restored = None

    def eval(self, exp_list: Any, **kwargs: Any) -> dict[str, Any]:
        """Evaluate; see Avalanche's `SupervisedTemplate`, and `resume`.

        Changes no parameter, buffer or training flag, and leaves all random states as they were, so
        that training does not depend on how often one evaluates.
        """
        run = self._run
        if run is None or run.is_in_train:
            if run is not None and run.position is not None:
                # before the point where the run goes on: it had ended
                return dict(self.evaluator.get_last_metrics())
            return self._eval(exp_list, **kwargs)
        exp_list = list(exp_list) if isinstance(exp_list, Iterator) else exp_list
        name = evaluation_of(exp_list)
        if run.is_replaying:
            run.pass_over(name, self.device)
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
            self._write(run, self._position(run, None))

    def _go_on(self, run: RunRecord) -> None:
        """Amid an experience that has been set up, become what the checkpoint holds."""
        state, position = run.restored, run.position
        assert state is not None
        assert position is not None
        self.train_epochs += position["epoch"]  # the loop over the remaining ones has begun
        self._load(state)
        go_on = functools.partial(self._be_at_checkpoint, state)
        if state["stop"] and position["iteration"] == 0:
            go_on()  # the loop asks for no mini-batch any more
        else:
            self.dataloader: Any = RestOfEpoch(self.dataloader, position, self.device, go_on=go_on)
        run.epoch_start = position["epoch_start"]
        run.restored = None

    def _be_at_checkpoint(self, state: State) -> None:
        self._stop_training = state["stop"]
        set_random_states(state["random"], self.device)

    def _after_training_epoch(self, **kwargs: Any) -> None:
        if isinstance(self.dataloader, RestOfEpoch):
            self.dataloader = self.dataloader.loader
        super()._after_training_epoch(**kwargs)

    def _before_training_iteration(self, **kwargs: Any) -> None:
        self._loaded_labels = self.mb_y  # plugins may put others in their place
        super()._before_training_iteration(**kwargs)

    def _after_training_iteration(self, **kwargs: Any) -> None:
        labels, self._loaded_labels = self._loaded_labels, None
        super()._after_training_iteration(**kwargs)
        run = self._run
        if run is None or run.every_seconds is None or self._has_come_to_the_end():
            return
        if time.monotonic() - run.last_write >= run.every_seconds:
            self._write(run, self._position(run, checksum_of_labels(labels)))

    def _has_come_to_the_end(self) -> bool:
        """Whether that was the last mini-batch of an epoch.

        A run that goes on from there would have no loss and no answers for hooks after the epoch.
        """
        return operator.length_hint(self.dataloader, -1) == self.clock.train_epoch_iterations

    def _after_training_exp(self, **kwargs: Any) -> None:
        self._stop_training = False  # who asked for it in the last epoch has had their will
        super()._after_training_exp(**kwargs)
        if self._run is not None:
            self._run.note(training_of(self.experience), self.evaluator.get_last_metrics())
            self._run.epoch_start = {}

    # Checkpoints --------------------------------------------------------------------------------

    def _write(self, run: RunRecord, position: dict[str, Any] | None = None) -> None:
        """Write a checkpoint of this moment, if it can be written."""
        try:
            plugins = self._captured_plugins()
            run.expect_no_new_object(_objects_of(plugins))
            state = {
                "fingerprint": run.fingerprint,
                "start": run.start,
                "learned": plain(self.state_dict(), "the strategy"),
                "plugins": plugins,
                "stop": self._stop_training,
                "random": random_states(self.device),
                "calls": [dataclasses.asdict(call) for call in run.calls],
                "position": position,
            }
        except NoPlainStateError as error:
            warnings.warn(f"No checkpoint was written. {error}", stacklevel=2)
            return
        run.folder.write(state)
        run.last_write, run.num_written = time.monotonic(), len(run.calls)

    def _position(self, run: RunRecord, labels: int | None) -> dict[str, Any]:
        """Where in an experience the run is, with the checksum of the last mini-batch's labels."""
        return {
            "experience": training_of(self.experience),
            "epoch": self.clock.train_exp_epochs,
            "iteration": self.clock.train_epoch_iterations,
            "labels": labels,
            "epoch_start": run.epoch_start,
        }

    def _load(self, state: State) -> None:
        self.model.to(self.device)
        try:
            for plugin, (_, saved) in zip(self.plugins, state["plugins"], strict=True):
                restore(plugin, saved)
            self.load_state_dict(state["learned"])
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError) as error:
            raise ValueError(
                "Expected a checkpoint that this version of the package has written, got one with "
                f"other contents ({type(error).__name__}: {first_line(error)}): name another "
                "folder to start anew, with a strategy built anew."
            ) from error

    def _captured_plugins(self) -> list[tuple[str, Any]]:
        names = [type(plugin).__name__ for plugin in self.plugins]
        parts = {id(self), id(self.model), id(self.optimizer), *own_tensors(self)}
        pairs = zip(names, self.plugins, strict=True)
        try:
            return [(name, capture(plugin, name, parts=parts)) for name, plugin in pairs]
        except RecursionError as error:
            raise NoPlainStateError(
                "Expected plugins that hold no reference to themselves, got one that does among "
                f"{', '.join(names)}: give it `state_dict` and `load_state_dict`."
            ) from error


def _objects_of(plugins: list[tuple[str, Any]]) -> frozenset[str]:
    return frozenset(path for name, captured in plugins for path in objects_in(captured, name))
