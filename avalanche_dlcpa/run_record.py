"""What a run with checkpoints remembers of itself: which calls have ended, and where it is."""

from __future__ import annotations

import dataclasses
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from avalanche_dlcpa.checkpoint import CheckpointFolder, State
from avalanche_dlcpa.experiences import classes_of, task_labels_of
from avalanche_dlcpa.random_states import set_random_states
from avalanche_dlcpa.snapshot import NoPlainStateError, plain_results

CONTENTS: dict[str, tuple[type, ...]] = {
    "fingerprint": (dict,),
    "start": (str,),
    "learned": (dict,),
    "plugins": (list,),
    "stop": (bool,),
    "random": (dict,),
    "calls": (list,),
    "position": (dict, type(None)),
}


@dataclasses.dataclass
class Call:
    """A call of the script that has ended: an experience trained, or a stream evaluated.

    Attributes:
        name: What was called with what.
        results: The metric values that are new since the call before.
        random: The random states after it, from which the script draws on; None where it left
            them alone, or where the script goes on later.
    """

    name: str
    results: dict[str, Any]
    random: dict[str, Any] | None = None


@dataclasses.dataclass
class RunRecord:
    """Where a run with checkpoints is.

    Attributes:
        folder: Of its checkpoints.
        every_epochs: Epochs between checkpoints.
        every_seconds: Seconds between checkpoints inside an epoch; None: none there.
        fingerprint: What must be the same when it is resumed.
        start: Which random states the script came with.
        objects: Where the plugins of a fresh run hold objects with a ``state_dict``.
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
    start: str = ""
    objects: frozenset[str] = frozenset()
    calls: list[Call] = dataclasses.field(default_factory=list)
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

    def pass_over(self, name: str, device: torch.device) -> None:
        """Come by a call that ended before the checkpoint, and have the script draw on as then."""
        call = self.calls[self.num_passed]
        self.expect(name, call.name)
        self.num_passed += 1
        self.results = self.results | call.results
        if call.random is not None:
            set_random_states(call.random, device)

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

    def expect_no_new_object(self, objects: Iterable[str]) -> None:
        """Refuse to write what a fresh run would have no object for.

        Raises:
            NoPlainStateError: A plugin has come to hold an object with a ``state_dict``.
        """
        new = sorted(set(objects) - self.objects)
        if new:
            raise NoPlainStateError(
                f"Expected plugins to hold objects with a `state_dict` from the start, got new "
                f"ones at {', '.join(new)}, which a run started again would not have: make them "
                "in the constructor, or give the plugin `state_dict` and `load_state_dict`."
            )

    def note(self, name: str, results: dict[str, Any]) -> None:
        """Note a call that has just ended."""
        old = self.results
        new = {k: v for k, v in results.items() if k not in old or old[k] is not v}
        self.calls.append(Call(name, plain_results(new)))
        self.num_passed = len(self.calls)
        self.results = dict(results)


class RestOfEpoch:
    """A loader from where a checkpoint was written.

    Args:
        loader: The loader, as it was made for the experience.
        position: Where the checkpoint was written.
        device: Where the strategy trains.
        go_on: Called when it has come by the mini-batches before the checkpoint.
    """

    def __init__(
        self,
        loader: Any,
        position: dict[str, Any],
        device: torch.device,
        *,
        go_on: Callable[[], None],
    ):
        self.loader, self.position, self.device, self.go_on = loader, position, device, go_on

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if self.position["iteration"] == 0:
            self.go_on()
            yield from self.loader
            return
        set_random_states(self.position["epoch_start"], self.device)
        batches = iter(self.loader)
        for _ in range(self.position["iteration"]):
            batch = next(batches)
        if checksum_of_labels(batch[1]) != self.position["labels"]:
            raise ValueError(
                "Expected the stream to deliver the samples of the checkpoint in their order, got "
                "others: pass the same stream, batch size and loader arguments as before."
            )
        self.go_on()
        yield from batches


def training_of(experience: Any) -> str:
    """A call of `train` in words, such as "train on experience 2 of train (300 samples, ...)"."""
    classes, tasks = classes_of(experience), task_labels_of(experience)
    return (
        f"train on experience {experience.current_experience} of "
        f"{experience.origin_stream.name} ({len(experience.dataset)} samples of classes {classes}, "
        f"tasks {tasks})"
    )


def evaluation_of(exp_list: Any) -> str:
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


def checksum_of_labels(labels: Any) -> int:
    """A number that tells the labels (B,) of a mini-batch from those of another."""
    return zlib.crc32(labels.cpu().numpy().tobytes())


def _is_call(value: Any) -> bool:
    names = {field.name for field in dataclasses.fields(Call)}
    return (
        isinstance(value, dict)
        and set(value) == names
        and isinstance(value["name"], str)
        and isinstance(value["results"], dict)
        and isinstance(value["random"], dict | None)
    )


def expect_same(state: State, fingerprint: dict[str, Any]) -> None:
    """Refuse a checkpoint of another run.

    Raises:
        ValueError: Names the first thing that differs, or what is missing.
    """
    missing = [name for name in CONTENTS if name not in state]
    if missing:
        raise ValueError(f"It lacks {', '.join(missing)}.")
    odd = [name for name, kinds in CONTENTS.items() if not isinstance(state[name], kinds)]
    if not odd and not all(_is_call(call) for call in state["calls"]):
        odd = ["calls"]
    if odd:
        raise ValueError(f"Its {', '.join(odd)} are not what this package writes.")
    found = state["fingerprint"]
    different = [
        name
        for name in [*fingerprint, *found]
        if repr(fingerprint.get(name)) != repr(found.get(name))  # NaN is not NaN
    ]
    if different:
        name = different[0]
        raise ValueError(
            f"It is of another run: it has {name} {found.get(name)}, and this strategy "
            f"{fingerprint.get(name)}."
        )
