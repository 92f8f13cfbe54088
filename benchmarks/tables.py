"""Tables: our results, and beside them the numbers that the paper published."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.building import BUFFER_SIZE
from benchmarks.cells import Result
from benchmarks.experiments import EXPERIMENTS, SCENARIOS, Column, Experiment, title_of
from benchmarks.loading import by_method, in_order
from benchmarks.markup import NOTHING, Entry, Row, Table
from benchmarks.methods import METHODS
from benchmarks.published import AVERAGE, Published, read_published
from benchmarks.settings import SETTINGS, at_scale
from benchmarks.summaries import Summary, marks, measure_of, percent, summarize, with_deviation

# The paper's captions star STL and Joint; the others keep all images as well.
UPPER_BOUNDS = ("stl", "stl-me-finetuned", "joint", "cumulative")
_PACKNET = (
    "Our PackNet has batch norms and a head for each task, which it neither shares nor prunes: "
    "Avalanche's takes no network with batch norm."
)
_ONE_HEAD = (
    "A head a task, trained on the classes of that task alone: STL, DLCPA, PackNet and what is "
    "said to have it. Ours of all others have one head over all classes, of which Task-IL takes "
    "those of the task."
)
_GPM = "The paper's figure has GPM as well, which is not among Avalanche's strategies."
_REMARKS = {
    "grid": _ONE_HEAD,
    "ssl-baselines": _ONE_HEAD,
    "over-time": f"{_ONE_HEAD} {_GPM} It does not tell into how many tasks Tiny-ImageNet is split "
    "there.",
    "confusion": _GPM,
    "linear-probe": "Rows: the extractors of STL after each task. Columns: a linear classifier "
    "trained on the training images of one task, judged on its test images. The row STL has "
    "the best of each column in each seed, which need not be that of its own task; STL-me is the "
    "mean of the extractors. Of several seeds, all are means.",
    "loss-surface": "The plane goes through STL's extractors of the first two tasks and the start "
    "of training: the first axis points from task 1 to task 2, the second is orthogonal to it and "
    "leads towards the start. A unit of both is a distance of 1 between parameters. Colours: the "
    "loss of a task, a panel each, on training images that were held out.",
    "table1": "The paper tells neither network nor hyperparameters on MNIST; ours are those of "
    "CIFAR-100.",
    "table2": f"{_ONE_HEAD} {_PACKNET}",
    "table3": "Cumulative goes over all images so far in each task, and takes (T + 1) / 2 times as "
    "many steps as Joint over T tasks. The paper underlines 26.68 on Tiny-ImageNet, although PASS "
    "has 28.48 there.",
    "table8": _PACKNET,
    "table9": f"{_ONE_HEAD} The paper does not tell the self-supervised loss of DLCPA there.",
    "table10": "The paper shuffles its tasks and does not tell how; ours are five orders of the "
    "classes, from the seeds 1 to 5, so that the tasks themselves differ: only the "
    "average over orders compares. Ours has the sample deviation (number of orders), the paper's "
    "that of the population.",
}


@dataclasses.dataclass
class _Line:
    """A row before it is written; `ours` and `paper` have an element a column."""

    label: str
    ours: list[Summary | None]
    paper: list[Published | None]
    ranked: bool = True
    begins_part: bool = False


def results_of(name: str, scale: str, results: Iterable[Result]) -> list[Result]:
    """Those of the results that belong to a table or figure at a scale."""
    experiment = EXPERIMENTS[name]
    settings = [at_scale(setting, scale) for setting in experiment.settings]
    return [
        result
        for result in results
        if result["setting"] in settings
        and result["method"] in experiment.methods
        and result["changes"] in experiment.changes
    ]


def experiment_table(name: str, scale: str, results: Iterable[Result]) -> Table:
    """A table of the paper with our numbers at a scale and, beside them, the published ones.

    Args:
        name: Of an experiment with columns, such as "table4".
        scale: "paper", "lab" or "digits".
        results: Any; those that belong to it are taken.

    Returns:
        A row a method: first ours, then those that only the paper has. If there is one method
        alone, a row a setting, then their average.
    """
    experiment = EXPERIMENTS[name]
    chosen = results_of(name, scale, results)
    published = read_published(name)
    if experiment.has_row_a_setting:
        columns = list(dict.fromkeys((c.scenario, c.measure) for c in experiment.columns))
        heads: list[tuple[str, ...]]
        heads = [(f"{SCENARIOS[scenario]} {measure}",) for scenario, measure in columns]
        lines = _setting_lines(experiment, columns, scale, chosen, published)
    else:
        heads = [
            (_data_title(c.setting), f"{SCENARIOS[c.scenario]} {c.measure}")
            for c in experiment.columns
        ]
        lines = _method_lines(experiment, scale, chosen, published)
    return Table(
        heads=_heads(heads, bool(published)),
        rows=_rows(lines, bool(published), second=experiment.marks_second),
        title=f"{experiment.title}, {scale} scale",
        notes=tuple(_notes(name, scale, chosen, published)),
        corner="setting" if experiment.has_row_a_setting else "method",
    )


def _method_lines(
    experiment: Experiment, scale: str, results: list[Result], published: list[Published]
) -> list[_Line]:
    columns = experiment.columns
    lines = []
    for method in experiment.methods:
        bound = method in UPPER_BOUNDS
        for changes in experiment.changes:
            runs = [r for r in results if (r["method"], r["changes"]) == (method, changes)]
            paper = [] if changes else [p for p in published if p.ours == method]
            lines.append(
                _Line(
                    title_of(method, changes) + "*" * bound,
                    [_ours(runs, column, scale) for column in columns],
                    [_in_column(paper, column) for column in columns],
                    ranked=not bound,
                )
            )
    for i, title in enumerate(dict.fromkeys(p.method for p in published if not p.ours)):
        paper = [p for p in published if p.method == title]
        row = [_in_column(paper, column) for column in columns]
        lines.append(_Line(title, [None] * len(columns), row, begins_part=i == 0))
    return lines


def _setting_lines(
    experiment: Experiment,
    columns: list[tuple[str, str]],
    scale: str,
    results: list[Result],
    published: list[Published],
) -> list[_Line]:
    lines = []
    for setting in experiment.settings:
        places = [Column(setting, *column) for column in columns]
        ours = [_ours(results, place, scale) for place in places]
        paper = [_in_column(published, place) for place in places]
        lines.append(_Line(_data_title(setting), ours, paper, ranked=False))
    means = [
        summarize(summary.mean for line in lines if (summary := line.ours[i]) is not None)
        for i in range(len(columns))
    ]
    paper = [_in_column(published, Column(AVERAGE, *column)) for column in columns]
    lines.append(_Line(AVERAGE, means, paper, ranked=False, begins_part=True))
    return lines


def _ours(runs: Iterable[Result], column: Column, scale: str) -> Summary | None:
    setting = at_scale(column.setting, scale)
    chosen = [run for run in runs if run["setting"] == setting]
    return measure_of(chosen, column.scenario, column.measure)


def _in_column(published: Iterable[Published], column: Column) -> Published | None:
    place = (column.setting, column.scenario, column.measure)
    found = [p for p in published if (p.setting, p.scenario, p.measure) == place]
    return found[0] if found else None


def _heads(heads: list[tuple[str, ...]], with_paper: bool) -> tuple[tuple[str, ...], ...]:
    if not with_paper:
        return tuple(heads)
    return tuple((*head, source) for head in heads for source in ("ours", "paper"))


def _rows(lines: list[_Line], with_paper: bool, *, second: bool) -> tuple[Row, ...]:
    columns = []
    for i in range(len(lines[0].ours)):
        found = [_ranked(lines, [x.ours[i] for x in lines], _summary_text, _summary_rank)]
        if with_paper:
            paper = [x.paper[i] for x in lines]
            found.append(_ranked(lines, paper, lambda p: p.text, lambda p: float(p.value)))
        for texts, ranked in found:
            pairs = zip(texts, marks(ranked, second=second), strict=True)
            columns.append([Entry(*pair) for pair in pairs])
    return tuple(
        Row(line.label, tuple(column[row] for column in columns), line.begins_part)
        for row, line in enumerate(lines)
    )


def _ranked(
    lines: list[_Line],
    found: Sequence[Summary | None] | Sequence[Published | None],
    text: Callable[..., str],
    rank: Callable[..., float],
) -> tuple[list[str], list[float | None]]:
    """A column: what was found in words, and its rank where its line is ranked."""
    texts = [NOTHING if one is None else text(one) for one in found]
    ranked = [
        rank(one) if one is not None and line.ranked else None
        for line, one in zip(lines, found, strict=True)
    ]
    return texts, ranked


def _summary_text(summary: Summary) -> str:
    return f"{with_deviation(summary)} ({summary.num})"


def _summary_rank(summary: Summary) -> float:
    return float(percent(summary.mean))


def _data_title(setting: str) -> str:
    """Title of a setting at paper scale without its network.

    Example:
        >>> _data_title("cifar100-10-order1")
        '10-split CIFAR-100, order 1'
    """
    return SETTINGS[setting].title.rpartition(", ")[0]


def scale_facts(name: str, scale: str, results: Iterable[Result]) -> str:
    """How the settings of a table or figure at a scale differ from the paper's.

    Example:
        >>> scale_facts("table8", "lab", [])
        '50 images a class, ResNet-18 of width 16, 5 epochs'
    """
    facts: dict[str, list[str]] = {}
    for setting in EXPERIMENTS[name].settings:
        paper, here = SETTINGS[setting], at_scale(setting, scale)
        epochs = {r["epochs"] for r in results if r["setting"] == here} or {SETTINGS[here].epochs}
        known = paper.title.split(", ")
        words = [word for word in SETTINGS[here].title.split(", ") if word not in known]
        words.append(f"{' or '.join(map(str, sorted(epochs)))} epochs")
        facts.setdefault(", ".join(words), []).append(_data_title(setting))
    if len(facts) == 1:
        return next(iter(facts))
    return "; ".join(f"{' and '.join(titles)}: {fact}" for fact, titles in facts.items())


def scale_notes(
    name: str, scale: str, results: list[Result], *, is_beside_paper: bool
) -> Iterable[str]:
    """What a table has to say below of its scale, and where its hyperparameters come from."""
    if scale != "paper":
        warning = "; not comparable with the published numbers" if is_beside_paper else ""
        yield f"{scale.capitalize()} scale: {scale_facts(name, scale, results)}{warning}."
    tuned: dict[str, list[str]] = {}
    for setting in EXPERIMENTS[name].settings:
        source = SETTINGS[at_scale(setting, scale)].tuned_on
        if source is not None:
            tuned.setdefault(source, []).append(_data_title(setting))
    for source, titles in tuned.items():
        is_all = len(titles) == len(EXPERIMENTS[name].settings)
        where = "" if is_all else f" on {' and '.join(titles)}"
        yield f"Hyperparameters{where}: those of {source}."


def _notes(
    name: str, scale: str, results: list[Result], published: list[Published]
) -> Iterable[str]:
    yield (
        "Percent; ours are mean ± sample standard deviation (number of seeds). "
        f"{NOTHING}: not run, not published or undefined."
    )
    if any(method in UPPER_BOUNDS for method in EXPERIMENTS[name].methods):
        yield "* Not ranked: an upper bound in the paper, or keeps all samples of earlier tasks."
    yield from _who_keeps_samples((method, {}) for method in EXPERIMENTS[name].methods)
    yield from scale_notes(name, scale, results, is_beside_paper=bool(published))
    quoted = {p.note.removeprefix("quoted from ") for p in published if p.is_quoted}
    if quoted:
        yield f"† The paper quotes it from {', '.join(sorted(quoted))}."
    yield from remarks(name)


def remarks(name: str) -> list[str]:
    """What is to be known of a table or figure, beside its numbers."""
    return [_REMARKS[name]] if name in _REMARKS else []


def _who_keeps_samples(runs: Iterable[tuple[str, dict[str, Any]]]) -> Iterable[str]:
    """Of each method and what was changed in it."""
    some: dict[str, list[str]] = {}
    whole = []
    for name, changes in runs:
        if name not in METHODS or not METHODS[name].keeps_samples:
            continue
        if name in UPPER_BOUNDS:
            whole.append(METHODS[name].title)
        else:
            size = f"{changes.get('buffer_size', BUFFER_SIZE)}"
            some.setdefault(size, []).append(METHODS[name].title)
    for size, titles in some.items():
        yield f"Keep at most {size} samples of earlier tasks: {'; '.join(dict.fromkeys(titles))}."
    if whole:
        yield f"Keep all samples of earlier tasks: {'; '.join(dict.fromkeys(whole))}."


def numbers_behind(name: str, results: Iterable[Result]) -> list[Table]:
    """Of a figure of the paper, a comparison for each of its settings."""
    judged = [result for result in results if result["method"] in METHODS]
    remark = tuple(remarks(name))
    tables = [
        comparison_table(r for r in judged if r["setting"] == setting)
        for setting in dict.fromkeys(result["setting"] for result in judged)
    ]
    return [dataclasses.replace(table, notes=(*table.notes, *remark)) for table in tables]


COLUMNS = ("Class-IL ACC", "Task-IL ACC", "Class-IL BWT", "Task-IL BWT", "seconds")


def comparison_table(results: Iterable[Result]) -> Table:
    """All methods of a setting: accuracies in percent, training time in seconds.

    With more than one seed: mean ± sample standard deviation, and the number of seeds.

    Args:
        results: Of one setting.

    Raises:
        ValueError: Results of several settings, or none.
    """
    groups = list(by_method(in_order(results)).values())
    settings = sorted({runs[0]["setting"] for runs in groups})
    if len(settings) != 1:
        raise ValueError(f"Expected `results` to be of one setting, got {settings}.")
    with_seeds = any(len(runs) > 1 for runs in groups)
    rows = []
    for runs in groups:
        measures = [
            _plain(measure_of(runs, scenario, measure), percent)
            for measure in ("ACC", "BWT")
            for scenario in SCENARIOS
        ]
        seconds = _plain(summarize(run["training_seconds"] for run in runs), "{:.0f}".format)
        texts = [*measures, seconds, *([str(len(runs))] if with_seeds else [])]
        title = title_of(runs[0]["method"], runs[0]["changes"])
        rows.append(Row(title, tuple(Entry(text) for text in texts)))
    heads = tuple((name,) for name in (*COLUMNS, *(("seeds",) if with_seeds else ())))
    notes = tuple(_who_keeps_samples((runs[0]["method"], runs[0]["changes"]) for runs in groups))
    return Table(heads, tuple(rows), title=SETTINGS[settings[0]].title, notes=notes)


def _plain(summary: Summary | None, write: Callable[[float], str]) -> str:
    return NOTHING if summary is None else with_deviation(summary, write)
