"""Numbers of a comparison: means over seeds, percent, and which are the best of a column."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Sequence

from benchmarks.cells import Result


@dataclasses.dataclass(frozen=True)
class Summary:
    """Mean of a measure, sample standard deviation (None of a single one) and their number."""

    mean: float
    deviation: float | None
    num: int


def summarize(values: Iterable[float | None]) -> Summary | None:
    """Summarise what is defined of the values; None if nothing is.

    Example:
        >>> summarize([2.0, None, 4.0, 6.0])
        Summary(mean=4.0, deviation=2.0, num=3)
    """
    defined = [value for value in values if value is not None]
    if not defined:
        return None
    deviation = statistics.stdev(defined) if len(defined) > 1 else None
    return Summary(statistics.fmean(defined), deviation, len(defined))


def measure_of(runs: Iterable[Result], scenario: str, measure: str) -> Summary | None:
    """ACC or BWT of a scenario over runs that differ in the seed."""
    return summarize(run[scenario][measure] for run in runs)


def with_deviation(summary: Summary, write: Callable[[float], str] | None = None) -> str:
    """A mean and, where there is one, its deviation.

    Args:
        summary: Of a measure.
        write: Makes a word of each; None: `percent`.

    Example:
        >>> with_deviation(Summary(0.25, 0.01, 3)), with_deviation(Summary(7.0, None, 1), str)
        ('25.00 ± 1.00', '7.0')
    """
    write = write or percent
    deviation = "" if summary.deviation is None else f" ± {write(summary.deviation)}"
    return write(summary.mean) + deviation


def percent(fraction: float) -> str:
    """Percent with two decimals.

    Example:
        >>> percent(-0.00001), percent(0.40114)
        ('0.00', '40.11')
    """
    return f"{round(100 * fraction, 2) + 0.0:.2f}"  # adding 0 turns -0.0 into 0.0


def marks(values: Sequence[float | None], *, second: bool = True) -> list[str]:
    """Mark the best values and the second best, both where two or more are there.

    Args:
        values: As they are printed, so that what looks equal is equal; None: not ranked.
        second: Whether the second best are marked, too.

    Example:
        >>> marks([40.8, None, 40.1, 38.4, 40.8])
        ['best', '', 'second', '', 'best']
    """
    ranked = [value for value in values if value is not None]
    if len(ranked) < 2:
        return [""] * len(values)
    first, next_one = [*sorted(set(ranked), reverse=True), None][:2]
    names = {next_one: "second" if second else "", first: "best", None: ""}
    return [names.get(value, "") for value in values]
