"""A cell of a grid: method, setting, seed and what is changed, with the file of its result."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from avalanche_dlcpa.self_supervised import HEADS
from benchmarks.analyses import ANALYSES
from benchmarks.given_loss import options_of_loss
from benchmarks.hyperparameters import (
    NoValuesError,
    batch_size_of,
    expect_number,
    hyperparameters_of,
)
from benchmarks.judgement import expect_sound
from benchmarks.methods import METHODS
from benchmarks.names import expect_known
from benchmarks.settings import SETTINGS

FORMAT = 3  # of the JSON
MOST_LETTERS = 200  # of the name of a cell; file systems take 255, and there are suffixes
Result = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run.

    Attributes:
        method: A name of `METHODS`, or of `benchmarks.analyses.ANALYSES`.
        setting: A name of `SETTINGS`.
        seed: Of network, order of samples and views; the stream does not depend on it.
        changes: Hyperparameters that differ from the chosen ones, as sorted pairs.
        validation: Whether it is a trial for the choice of hyperparameters: the validation split
            is held out and evaluated, the test set left alone, the first experiences learned, and
            ``changes`` are all the hyperparameters there are.

    Raises:
        ValueError: An unknown name, with the nearest one, or a change that does not suit.
    """

    method: str
    setting: str
    seed: int = 0
    changes: tuple[tuple[str, Any], ...] = ()
    validation: bool = False

    def __post_init__(self) -> None:
        expect_known("method", self.method, [*METHODS, *ANALYSES])
        expect_known("setting", self.setting, SETTINGS)
        _expect_file_name(self)
        for name, value in self.changes:
            expect_number(name, value)
        analysis = ANALYSES.get(self.method)
        if self.validation or (analysis is not None and analysis.holds_out):
            expect_held_out(self.setting)
        if self.validation and analysis is not None:
            raise ValueError(
                f"Expected a trial of a method, got one of {self.method}, which is an analysis of "
                "trained networks: leave --validation out."
            )
        if not self._ssl:
            return
        expect_known("self-supervised loss", self._ssl, HEADS)
        method = METHODS.get(self.method)
        if method is not None and method.draws_views:
            raise ValueError(
                f"Expected a baseline to be given a self-supervised loss, got {self.method}, which "
                "has its own: name another method, such as dlcpa-byol."
            )
        if method is not None and method.needs_task_labels:
            raise ValueError(
                f"Expected a method whose network takes images alone with --ssl, got {self.method},"
                " whose network wants to be told the task of each view: name another method."
            )

    @property
    def _ssl(self) -> str | None:
        """The self-supervised loss that a baseline or analysis is given."""
        ssl = dict(self.changes).get("ssl")
        return None if ssl is None else str(ssl)

    @property
    def name(self) -> str:
        """Name of its files, the same for equal numbers, such as 1 and 1.0.

        Example:
            >>> Cell("dlcpa-mocov2", "digits", 3, (("supervised_weight", 0.1),)).name
            'digits_dlcpa-mocov2_supervised_weight=0.1_seed3'
        """
        changes = [f"{name}={_shortest(value)}" for name, value in self.changes]
        trial = ["validation"] if self.validation else []
        return "_".join([self.setting, self.method, *changes, f"seed{self.seed}", *trial])

    @property
    def num_experiences(self) -> int:
        """How many experiences it learns."""
        setting = SETTINGS[self.setting]
        if not self.validation:
            return setting.num_experiences
        return min(setting.num_tuning_experiences, setting.num_experiences)

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """All of them, changes included; what a baseline is given of DLCPA's loss is as in DLCPA.

        Where none were chosen, changes with a learning rate are all that there are.

        Raises:
            ValueError: None were chosen for the method, or that loss, in this setting, and
                ``changes`` has no learning rate.
        """
        if self.validation:
            return dict(self.changes)
        own = self._known_of(self.trains_as)
        if self._ssl:
            known = self._known_of(f"dlcpa-{self._ssl}")
            own = {**own, **options_of_loss(self._ssl, known)}
        return {**own, **dict(self.changes)}

    def _known_of(self, method: str) -> dict[str, Any]:
        """The hyperparameters of a method in the setting; none where ``changes`` are all."""
        try:
            return hyperparameters_of(method, self.setting)
        except NoValuesError:
            if "lr" not in dict(self.changes):
                raise
            return {}

    def expect_values(self) -> None:
        """Refuse a cell whose hyperparameters were never chosen, before any work.

        Raises:
            ValueError: See `hyperparameters`.
        """
        _ = self.hyperparameters

    @property
    def batch_size(self) -> int:
        """Of its training."""
        return batch_size_of(self.trains_as, self.setting)

    @property
    def trains_as(self) -> str:
        """The method whose hyperparameters it takes."""
        return "stl" if self.method in ANALYSES else METHODS[self.method].trains_as or self.method

    @property
    def sources(self) -> list[str]:
        """All methods whose hyperparameters it takes."""
        return [self.trains_as, *([f"dlcpa-{self._ssl}"] if self._ssl else [])]

    @property
    def words(self) -> list[str]:
        """Words of the command line of `benchmarks.run` that run it."""
        words = ["--method", self.method, "--setting", self.setting, "--seed", str(self.seed)]
        words += ["--validation"] if self.validation else []
        return words + [f"--set={name}={json.dumps(value)}" for name, value in self.changes]


def expect_held_out(setting: str) -> None:
    """Refuse a setting that learns every image, for what is judged on the validation split.

    Raises:
        ValueError: It names the setting that has one.
    """
    if not SETTINGS[setting].can_hold_out:
        raise ValueError(
            f"Expected a setting with images to hold out, got {setting}, which learns all: take "
            f"{SETTINGS[setting].tuned_on}."
        )


def _expect_file_name(cell: Cell) -> None:
    """Refuse changes that no file could be named after."""
    for name, value in cell.changes:
        if not re.fullmatch(r"[\w.+-]+", f"{name}{_shortest(value)}"):
            raise ValueError(
                f"Expected names and values of letters, digits, dots, plus and minus, got "
                f"{name}={value}."
            )
    if len(cell.name) > MOST_LETTERS:
        raise ValueError(
            f"Expected changes for which a file can be named, got {len(cell.name)} letters: make "
            f"them fewer than {MOST_LETTERS}."
        )


def _shortest(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def grid(
    methods: Iterable[str],
    settings: Iterable[str],
    seeds: Iterable[int],
    changes: Iterable[Mapping[str, Any]] = ({},),
) -> list[Cell]:
    """All combinations, seed by seed, so that a whole comparison is there early.

    Example:
        >>> [cell.name for cell in grid(["ewc", "lwf"], ["digits"], [0, 1])]
        ['digits_ewc_seed0', 'digits_lwf_seed0', 'digits_ewc_seed1', 'digits_lwf_seed1']
    """
    pairs = [tuple(sorted(change.items())) for change in changes]
    combinations = itertools.product(seeds, settings, methods, pairs)
    return [Cell(method, setting, seed, change) for seed, setting, method, change in combinations]


def parse_changes(words: Sequence[str]) -> dict[str, Any]:
    """Changes as they are typed, ``name=value``, with JSON values or plain words.

    Example:
        >>> parse_changes(["supervised_weight=0.1", "ssl=mocov2"])
        {'supervised_weight': 0.1, 'ssl': 'mocov2'}

    Raises:
        ValueError: A word without ``=``, a name twice, or a value of several parts.
    """
    changes: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name in changes:
            raise ValueError(f"Expected one value for {name}, got '{value}' as well.")
        if not (name and equals and value):
            raise ValueError(f"Expected changes such as supervised_weight=0.1, got '{word}'.")
        try:
            changes[name] = json.loads(value)
        except json.JSONDecodeError:
            changes[name] = value
        if isinstance(changes[name], list | dict):
            raise ValueError(f"Expected a number or a word for {name}, got '{value}'.")
        if isinstance(changes[name], float) and not math.isfinite(changes[name]):
            raise ValueError(f"Expected a finite number for {name}, which files hold, got {value}.")
    return changes


def result_path(cell: Cell, folder: Path) -> Path:
    """Where its result lies."""
    return folder / f"{cell.name}.json"


def checkpoints_path(cell: Cell, folder: Path) -> Path:
    """Where the checkpoints of a run lie until its result is written."""
    return folder / f"{cell.name}.checkpoints"


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def read_result(path: Path) -> Result:
    """A result of this version.

    Raises:
        ValueError: Cut short, no JSON, or of another version.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except ValueError as error:
        raise ValueError(
            f"Expected {path.name} to hold a whole result, got a file cut short or altered "
            f"({error}): delete it, and it is run again."
        ) from error
    found = result.get("format") if isinstance(result, dict) else None
    if found is None:
        raise ValueError(
            f"Expected {path.name} to be a result of benchmarks.run, got another JSON: move it "
            "away."
        )
    if found != FORMAT:
        raise ValueError(
            f"Expected {path.name} to have format {FORMAT}, got {found}: it is of another version. "
            "Write to another folder with --out."
        )
    return result


def check_setting(result: Result, cell: Cell) -> None:
    """Refuse a result of its setting as it was before a change.

    Raises:
        ValueError: Other data, network, epochs or views.
    """
    setting = SETTINGS[cell.setting]
    now = {"setting_title": setting.title, "epochs": setting.epochs, "views": setting.views}
    _expect_equal(result, now, cell)


def check_same(result: Result, cell: Cell) -> None:
    """Refuse to take a result for that of a cell which would now run otherwise.

    Raises:
        ValueError: Another cell's, one that was altered, other hyperparameters or another budget.
    """
    check_setting(result, cell)
    own = {
        "method": cell.method,
        "setting": cell.setting,
        "seed": cell.seed,
        "changes": dict(cell.changes),
    }
    for name, value in own.items():
        if result.get(name) != value:
            raise ValueError(
                f"Expected {cell.name}.json to be of {name} {value}, got {result.get(name)}: it "
                "was copied or renamed. Delete it, and it is run."
            )
    if cell.method in METHODS:
        judged_on = "valid_stream" if cell.validation else "test_stream"
        if result.get("judged_on") != judged_on:
            raise ValueError(
                f"Expected {cell.name}.json to be judged on {judged_on}, got "
                f"{result.get('judged_on')}: it was copied or renamed. Delete it, and it is run."
            )
    now = {
        "hyperparameters": cell.hyperparameters,
        "batch_size": cell.batch_size,
        "num_experiences": cell.num_experiences,
    }
    _expect_equal(result, now, cell)
    expect_sound(result, expect_found_of(cell))


def result_there(cell: Cell, folder: Path) -> Result | None:
    """The result of a cell that is in a folder already; None where it is not.

    Raises:
        ValueError: It is none of this version, or of a cell which would now run otherwise.
    """
    path = result_path(cell, folder)
    if not path.exists():
        return None
    result = read_result(path)
    check_same(result, cell)
    return result


def expect_found_of(cell: Cell) -> Callable[[Result], None] | None:
    """What looks at what an analysis has found; None: the cell is of a method."""
    return ANALYSES[cell.method].expect_found if cell.method in ANALYSES else None


def _expect_equal(result: Result, now: dict[str, Any], cell: Cell) -> None:
    for name, value in now.items():
        if result.get(name) != value:
            raise ValueError(
                f"Expected {cell.name}.json to have {name} {value}, got {result.get(name)}: the "
                "settings have changed since. Delete it, or write to another folder with --out."
            )
