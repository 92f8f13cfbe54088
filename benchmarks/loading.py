"""The results of a folder that can be compared, and why its other files cannot."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.analyses import ANALYSES
from benchmarks.cells import Cell, Result, check_setting, expect_found_of, read_result
from benchmarks.experiments import title_of
from benchmarks.hyperparameters import NoValuesError
from benchmarks.judgement import expect_sound
from benchmarks.methods import METHODS
from benchmarks.settings import SETTINGS

_SHARED = ("hyperparameters", "batch_size")  # by the seeds of a mean
_SETTING = ("setting_title", "epochs", "views")
_EVERY = ("method", "setting", "seed", "changes", *_SETTING, *_SHARED, "provenance")
_METHODS = ("judged_on", "num_experiences", "classes", "class_il", "task_il", "training_seconds")


def load_results(folder: Path) -> tuple[list[Result], dict[str, str]]:
    """Read the results of a folder.

    Args:
        folder: Of the JSONs of `benchmarks.run`.

    Returns:
        The results, in the order of methods, changes and seeds; and the reason why a file is left
        out, by its name. No file is changed.
    """
    found: dict[Cell, Result] = {}
    files: dict[Cell, str] = {}
    skipped: dict[str, str] = {}
    for path in sorted(folder.glob("*_seed*.json")):
        try:
            result = read_result(path)
            cell = _check_whole(result)
            if cell in found:
                raise ValueError(f"Expected one file a run, got that of {files[cell]} again.")
        except ValueError as error:
            skipped[path.name] = str(error)
        except OSError as error:  # a folder, a link to nothing, a disk that fails
            skipped[path.name] = f"Expected a file that can be read, got: {error.strerror}."
        else:
            found[cell], files[cell] = result, path.name
    for runs in by_method(found.values()).values():
        if any(run[name] != runs[0][name] for run in runs for name in _SHARED):
            cells = [cell_of(run) for run in runs]
            for cell in cells:
                del found[cell]
                skipped[files[cell]] = (
                    f"Expected {', '.join(cell.name for cell in cells)} to share hyperparameters "
                    "and batch size, got different ones, whose mean says nothing: delete the old."
                )
    return in_order(found.values()), skipped


def cell_of(result: Result) -> Cell:
    """The cell whose result it is.

    Raises:
        ValueError: A name that there is not.
    """
    changes = tuple(sorted(result["changes"].items()))
    return Cell(result["method"], result["setting"], result["seed"], changes)


def _expect_words(result: Result) -> None:
    """Refuse what no cell is named with."""
    kinds = {"method": str, "setting": str, "seed": int, "changes": dict}
    for name, kind in kinds.items():
        if type(result[name]) is not kind:
            raise ValueError(f"Expected {name} to be a {kind.__name__}, got {result[name]!r}.")
    if result["seed"] < 0:
        raise ValueError(f"Expected a seed from 0 on, got {result['seed']}.")
    if any(isinstance(value, list | dict) for value in result["changes"].values()):
        raise ValueError(f"Expected changes to words or numbers, got {result['changes']}.")


def _check_whole(result: Result) -> Cell:
    """The cell of a result on the test set that learned all that its setting says, as it is now.

    Raises:
        ValueError: Another result.
    """
    missing = [name for name in _EVERY if name not in result]
    if not missing:
        _expect_words(result)
    if not missing and result["method"] in METHODS:
        missing = [name for name in _METHODS if name not in result]
    if missing:
        raise ValueError(f"Expected a result with {', '.join(missing)}, got one without.")
    cell = cell_of(result)
    check_setting(result, cell)
    if cell.method in METHODS:
        if result["judged_on"] != "test_stream":
            raise ValueError(f"Expected a result on test_stream, got one on {result['judged_on']}.")
        whole = SETTINGS[cell.setting].num_experiences
        if result["num_experiences"] != whole:
            raise ValueError(
                f"Expected a result of {whole} experiences, got {result['num_experiences']}."
            )
    expect_sound(result, expect_found_of(cell))
    return cell


def in_order(results: Iterable[Result]) -> list[Result]:
    """In the order of methods, changes and seeds."""
    order = {method: index for index, method in enumerate([*METHODS, *ANALYSES])}

    def place(result: Result) -> tuple[int, int, list[tuple[str, float, str]], int]:
        changes = [
            (name, value if isinstance(value, int | float) else 0.0, str(value))
            for name, value in sorted(result["changes"].items())
        ]
        return order[result["method"]], len(changes), changes, result["seed"]

    return sorted(results, key=place)


def by_method(results: Iterable[Result]) -> dict[Cell, list[Result]]:
    """Results that differ in the seed alone, together, in the order of their first."""
    groups: dict[Cell, list[Result]] = {}
    for result in results:
        groups.setdefault(dataclasses.replace(cell_of(result), seed=0), []).append(result)
    return groups


def superseded(results: Iterable[Result]) -> list[str]:
    """Which results ran with other hyperparameters than they would now, a sentence a mean.

    What was changed on purpose is the same now as then.

    Raises:
        ValueError: The file of the chosen values was cut short or altered.
    """
    notes = []
    for cell, runs in by_method(results).items():
        ran = {**runs[0]["hyperparameters"], "batch_size": runs[0]["batch_size"]}
        try:
            now = {**cell.hyperparameters, "batch_size": cell.batch_size}
        except NoValuesError:
            now = {}
        if ran != now:
            seeds = ", ".join(str(run["seed"]) for run in runs)
            notes.append(
                f"Superseded: {title_of(cell.method, dict(cell.changes))} in {cell.setting}, seed "
                f"{seeds}, ran with {_values(ran, now)} where {_values(now, ran)} is chosen now."
            )
    return notes


def _values(own: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Those that differ, in words."""
    differing = [f"{name} {v}" for name, v in own.items() if (name, v) not in other.items()]
    return ", ".join(differing) or "nothing"


def provenance(results: Sequence[Result]) -> dict[str, str]:
    """All commits, versions and kinds of machine that the results come from."""
    origins = [result["provenance"] for result in results]
    found: dict[str, set[str]] = {}
    for origin in origins:
        for name in ("commit", "date", "python", "device", "gpu", "processor", "threads"):
            if name in origin:  # a CPU's has no "gpu"
                found.setdefault(name, set()).add(str(origin[name]))
        for package, version in origin["versions"].items():
            found.setdefault(package, set()).add(str(version))
    return {name: ", ".join(sorted(values)) for name, values in found.items()}
