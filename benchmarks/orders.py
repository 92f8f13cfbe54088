"""The order in which methods come out, ours beside the paper's."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from benchmarks.cells import Result
from benchmarks.experiments import EXPERIMENTS, SCENARIOS, title_of
from benchmarks.markup import Entry, Row, Table
from benchmarks.published import Published, read_all
from benchmarks.settings import SETTINGS, at_scale
from benchmarks.summaries import Summary, measure_of, with_deviation
from benchmarks.tables import scale_notes


def order_tables(name: str, scale: str, results: Iterable[Result]) -> list[Table]:
    """Of each scenario, the methods that the paper measured for any of its tables, the best first.

    Args:
        name: Of an experiment.
        scale: "paper", "lab" or "digits".
        results: Any; those of the experiment's first setting without changes are taken.

    Returns:
        A table a scenario, with a row a method: our accuracy and the paper's, each with its place
        among these methods. None where fewer than two methods compare.
    """
    experiment = EXPERIMENTS[name]
    setting = at_scale(experiment.settings[0], scale)
    chosen = [r for r in results if r["setting"] == setting and not r["changes"]]
    tables = []
    for scenario, title in SCENARIOS.items():
        lines = []
        for method in experiment.methods:
            runs = [run for run in chosen if run["method"] == method]
            ours = measure_of(runs, scenario, "ACC")
            paper = _published(method, experiment.settings[0], scenario)
            if ours is not None and paper is not None:
                lines.append((title_of(method), ours, paper))
        if len(lines) > 1:
            whole = f"{title}, order of the methods: {SETTINGS[setting].title}"
            notes = tuple(scale_notes(name, scale, chosen, is_beside_paper=True))
            tables.append(_table(whole, title, lines, notes))
    return tables


def _published(method: str, setting: str, scenario: str) -> Published | None:
    """What a table of the paper says of a method, with the deviation where one has it.

    The same number stands in several. Those that the paper quotes are of other protocols.
    """
    place = (method, setting, scenario, "ACC")
    found = [p for p in read_all() if (p.ours, p.setting, p.scenario, p.measure) == place]
    own = [p for p in found if not p.is_quoted]
    return max(own, key=lambda p: bool(p.deviation), default=None)


def _table(
    title: str,
    scenario: str,
    lines: list[tuple[str, Summary, Published]],
    notes: tuple[str, ...],
) -> Table:
    lines = sorted(lines, key=lambda line: -line[1].mean)
    means = [ours.mean for _, ours, _ in lines]
    papers = [float(paper.value) for _, _, paper in lines]
    rows = []
    places = zip(lines, _places(means), _places(papers), strict=True)
    for (label, ours, paper), own_place, place in places:
        texts = [with_deviation(ours), paper.text, str(place)]
        rows.append(Row(f"{own_place}. {label}", tuple(map(Entry, texts))))
    pairs = list(itertools.combinations(zip(means, papers, strict=True), 2))
    kept = sum((a - b) * (paper_a - paper_b) >= 0 for (a, paper_a), (b, paper_b) in pairs)
    return Table(
        heads=((f"{scenario} ACC, ours",), ("paper",), ("place in the paper",)),
        rows=tuple(rows),
        title=title,
        notes=(f"{kept} of {len(pairs)} pairs of methods stand in the paper's order.", *notes),
    )


def _places(values: list[float]) -> list[int]:
    """From 1 on for the highest; equal values share one, and pairs of such are in any order."""
    return [1 + sum(other > value for other in values) for value in values]
