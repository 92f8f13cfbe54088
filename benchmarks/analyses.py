"""The appendix's analyses of STL by name; like methods, they are run for a setting and a seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from benchmarks import linear_probe, loss_surface


@dataclasses.dataclass(frozen=True)
class Analysis:
    """An analysis.

    Attributes:
        title: For tables and pages.
        run: Setting, then by keyword ``seed``, ``ssl``, ``dataset_root``, ``device`` and the
            hyperparameters of STL -> what it found, as JSON takes it.
        expect_found: Refuses, with a `ValueError`, a result that it has not found so.
        holds_out: Whether it judges on the validation split.
    """

    title: str
    run: Callable[..., dict[str, Any]]
    expect_found: Callable[[dict[str, Any]], None]
    holds_out: bool = False


ANALYSES = {
    "linear-probe": Analysis(
        "Linear probe of STL and STL-me", linear_probe.run, linear_probe.expect_found
    ),
    "loss-surface": Analysis(
        "Loss over the plane of two extractors",
        loss_surface.run,
        loss_surface.expect_found,
        holds_out=True,
    ),
}
