"""Run cells with a live view of what is at work and how long it will take."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from benchmarks.cells import Cell
from benchmarks.pool import Runner

_BAR = "{bar:24} {n}/{total} tasks, {elapsed}, {remaining} left{postfix}"


def run_grid(
    cells: list[Cell],
    run: Runner,
    *,
    on_end: Callable[[Cell, str | None], Any] = lambda cell, failure: None,
) -> dict[Cell, str]:
    """Run cells and show how far they are.

    Args:
        cells: What to run.
        run: Runs them, and yields their progress.
        on_end: Called with each cell that has ended, and why it failed, or None.

    Returns:
        Why those failed that did.
    """
    failures = {}
    learned = dict.fromkeys(cells, 0)
    total = sum(cell.num_experiences for cell in cells)
    seconds = 1.0 if sys.stderr.isatty() else 60.0  # between lines of a log
    with tqdm(total=total, bar_format=_BAR, mininterval=seconds, dynamic_ncols=True) as bar:
        for reports in run(cells):
            for report in reports:
                cell = report.cell
                learned[cell] = cell.num_experiences if report.ended else report.learned
                if report.failure is not None:
                    failures[cell] = report.failure
                    bar.write(f"failed: {cell.name}: {report.failure}")
                if report.ended:
                    on_end(cell, report.failure)
            at_work = [f"{r.cell.name} ({r.learned})" for r in reports if not r.ended]
            bar.set_postfix_str("; ".join(at_work), refresh=False)
            bar.update(sum(learned.values()) - bar.n)
    return failures
