"""Run cells with a live view of what is at work and how long it will take."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

from tqdm import tqdm

from benchmarks.cells import Cell
from benchmarks.pool import Runner

_BAR = "{bar:24} {n}/{total} tasks, {elapsed}, {remaining} left{postfix}"
LOG_SECONDS = 60.0  # between lines where nobody looks on


def run_grid(
    cells: list[Cell],
    run: Runner,
    *,
    on_end: Callable[[Cell, str | None], Any] = lambda cell, failure: None,
) -> dict[Cell, str]:
    """Run cells and show how far they are; what a failed one did not learn is taken off the total.

    Args:
        cells: What to run.
        run: Runs them, and yields their progress.
        on_end: Called with each cell that has ended, and why it failed, or None.

    Returns:
        Why those failed that did.
    """
    failures = {}
    learned = dict.fromkeys(cells, 0)
    resumed = dict.fromkeys(cells, 0)
    total = sum(cell.num_experiences for cell in cells)
    bar = tqdm(
        total=total,
        bar_format=_BAR,
        mininterval=1.0 if sys.stderr.isatty() else LOG_SECONDS,
        miniters=0,  # a line that says what is at work, whether or not a task has ended
        smoothing=0,  # tasks come in at long and uneven intervals: the mean since the start
        dynamic_ncols=True,
    )
    with bar, closing(run(cells)) as progress:  # stopped: nothing is at work any more
        for reports in progress:
            for report in reports:
                cell = report.cell
                learned[cell], resumed[cell] = report.learned, report.resumed
                if report.failure is not None:
                    bar.total -= cell.num_experiences - report.learned
                    failures[cell] = report.failure
                    bar.write(f"failed: {cell.name}: {report.failure}")
                elif report.ended:
                    learned[cell] = cell.num_experiences
                if report.ended:
                    on_end(cell, report.failure)
            at_work = [f"{r.cell.name} ({r.learned})" for r in reports if not r.ended]
            bar.set_postfix_str("; ".join(at_work), refresh=False)
            bar.initial = sum(resumed.values())  # took no time here
            bar.update(sum(learned.values()) - bar.n)
    return failures
