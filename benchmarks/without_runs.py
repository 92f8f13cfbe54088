"""The paper's tables that no run is needed for, 5 and 6, as sections of a report."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks import data_statistics, hyperparameter_table
from benchmarks.cells import Result
from benchmarks.page import Section
from benchmarks.settings import SCALES, at_scale

COMMANDS = {
    "table5": "python -m benchmarks.hyperparameter_table",
    "table6": "python -m benchmarks.data_statistics",
}


def shown(folder: Path) -> str:
    """How the commands of a report name a folder: by no path of this machine."""
    return folder.name if folder.is_absolute() else str(folder)


def scales_without_runs(results: Iterable[Result]) -> list[str]:
    """The scales at which a report of these results has the table of hyperparameters, too."""
    settings = {result["setting"] for result in results}
    return [
        scale
        for scale in SCALES
        if settings & {at_scale(setting, scale) for setting in hyperparameter_table.PAPER}
    ]


def hyperparameters_section(scale: str) -> Section:
    """What methods run with at a scale, beside the paper's Table 5."""
    settings = [at_scale(setting, scale) for setting in hyperparameter_table.PAPER]
    return Section(
        anchor=f"table5-{scale}",
        title=f"table5: Hyperparameters, {scale} scale",
        command=f"{COMMANDS['table5']} --setting {' '.join(settings)}",
        results=(),
        tables=[hyperparameter_table.table(setting) for setting in settings],
    )


def skipped_data(folder: Path) -> dict[str, str]:
    """Why the file of what was counted is left out, by its name; empty: it is not."""
    try:
        data_statistics.read_counted(folder)
    except ValueError as error:
        return {data_statistics.FILE: str(error)}
    return {}


def data_section(folder: Path) -> Section | None:
    """What `benchmarks.data_statistics` counted into a folder, beside the paper's Table 6.

    None where there is nothing, or what `skipped_data` gives the reason for.
    """
    counted = {} if skipped_data(folder) else data_statistics.read_counted(folder)
    if not counted:
        return None
    return Section(
        anchor="table6",
        title="table6: Data sets",
        command=f"{COMMANDS['table6']} --data {' '.join(counted)} --out {shown(folder)}",
        results=(),
        tables=[data_statistics.table(counted)],
    )
