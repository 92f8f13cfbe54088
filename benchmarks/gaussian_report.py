"""Table and figures of `benchmarks.gaussian` from its JSONs; never trains.

    python -m benchmarks.gaussian_report results/gaussian

writes ``gaussian.md`` into the folder: all methods side by side, then every variant and a figure
for each; of judgements on the validation split, the combinations of priors, the best first.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from avalanche_dlcpa.plots import plot_accuracy_over_experiences
from benchmarks.experiments import SCENARIOS
from benchmarks.gaussian_variants import TITLES
from benchmarks.markup import NOTHING, Entry, Row, Table, as_markdown
from benchmarks.methods import METHODS
from benchmarks.settings import SETTINGS
from benchmarks.summaries import measure_of, percent, with_deviation
from benchmarks.whole_files import save_text, whole_file

DRAWN = {
    "linear": "linear heads",
    "stored": "Gaussian, means as stored",
    "map": "Gaussian, drift map",
    "oracle": "oracle",
}
COLUMNS = [(scenario, measure) for measure in ("ACC", "BWT") for scenario in SCENARIOS]
Result = dict[str, Any]
Group = tuple[str, str]  # setting, method
SHOWN, SHOWN_OF_HEADS = 15, 3  # combinations, and those with trained heads


def load(folder: Path, judged_on: str) -> dict[Group, list[Result]]:
    """Results of a folder by setting and method, in the order of `METHODS`, then of seeds.

    Raises:
        ValueError: Runs of one group that differ in more than the seed.
    """
    found: dict[Group, list[Result]] = {}
    results = [_read(path) for path in sorted(folder.glob("*_seed*.json"))]
    order = list(METHODS)
    for result in sorted(results, key=lambda r: (order.index(r["method"]), r["seed"])):
        if result["judged_on"] == judged_on:
            found.setdefault((result["setting"], result["method"]), []).append(result)
    shared = ["hyperparameters", "covariance_prior", "map_prior", "epochs", "num_experiences"]
    if judged_on == "test_stream":
        shared.append("images_per_class")
    for group, runs in found.items():
        if any(run["variants"].keys() != runs[0]["variants"].keys() for run in runs):
            raise ValueError(
                f"Expected runs of {' '.join(group)} with the same variants, got different ones: "
                "judge those of older code again."
            )
        for name in shared:
            if any(run[name] != runs[0][name] for run in runs):
                raise ValueError(
                    f"Expected runs of {' '.join(group)} with one {name}, got "
                    f"{[run[name] for run in runs]}: remove old ones from {folder}."
                )
    return found


def _read(path: Path) -> Result:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        if {"variants", "method", "judged_on"} <= result.keys():
            return dict(result)
    except (AttributeError, ValueError) as error:
        raise ValueError(f"Expected {path} to hold a whole result, got: {error}") from error
    raise ValueError(
        f"Expected {path} to be a result of benchmarks.gaussian, got another JSON: name a folder "
        "of such results alone, such as results/gaussian."
    )


def overview_table(groups: Mapping[Group, Sequence[Result]]) -> Table:
    """The methods of a setting beside each other: accuracies in percent, mean ± deviation.

    Args:
        groups: Of as many experiences, and as many images a class for the statistics.
    """
    rows = []
    for runs in groups.values():
        found = (
            measure_of([run["variants"][name] for run in runs], scenario, "ACC")
            for scenario in SCENARIOS
            for name in DRAWN
        )
        entries = tuple(Entry(NOTHING if f is None else with_deviation(f)) for f in found)
        rows.append(Row(METHODS[runs[0]["method"]].title, entries))
    first = next(iter(groups.values()))[0]
    return Table(
        heads=tuple((title, name) for title in SCENARIOS.values() for name in DRAWN.values()),
        rows=tuple(rows),
        title=_setting_title(first),
        notes=("ACC in %. The oracle has means and covariance from all data.",),
    )


def variants_table(runs: Sequence[Result]) -> Table:
    """Every variant of a setting and method: accuracies in percent, mean ± sample deviation."""
    names = [name for name in TITLES if name in runs[0]["variants"]]
    rows = tuple(Row(TITLES[name], tuple(_entries(runs, name))) for name in names)
    first = runs[0]
    training = sum(run["training_seconds"] for run in runs)
    cost = sum(run["plugin_seconds"] for run in runs) / training
    return Table(
        heads=tuple((f"{SCENARIOS[scenario]} {measure}",) for scenario, measure in COLUMNS),
        rows=rows,
        title=_title(first),
        notes=(
            f"{len(runs)} seeds, {first['num_experiences']} experiences, {first['epochs']} epochs; "
            f"covariance_prior {first['covariance_prior']:g}, map_prior {first['map_prior']:g}.",
            *_shares(runs),
            f"The plugin took {100 * cost:.1f} % of the time of training.",
            f"Trained by the code of {_commits(runs)}.",
        ),
        corner="classifier",
    )


def _entries(runs: Sequence[Result], name: str) -> Iterable[Entry]:
    own = [run["variants"][name] for run in runs]
    for scenario, measure in COLUMNS:
        found = measure_of(own, scenario, measure)
        yield Entry(NOTHING if found is None else with_deviation(found))


def _commits(runs: Sequence[Result]) -> str:
    return ", ".join(sorted({run["provenance"]["training"]["commit"] for run in runs}))


def _shares(runs: Sequence[Result]) -> Iterable[str]:
    """A sentence where the oracle gains anything."""
    shares = [
        f"{100 * share:.0f} % ({title})"
        for scenario, title in SCENARIOS.items()
        if (share := gain_share(runs, scenario)) is not None
    ]
    if shares:
        told = " and ".join(shares)
        yield f"The drift map has {told} of what the oracle gains over the linear heads."


def gain_share(runs: Sequence[Result], scenario: str) -> float | None:
    """What the drift map gains over the linear heads, as a share of what the oracle gains.

    None where the oracle gains nothing.
    """
    means = {}
    for name in ("linear", "map", "oracle"):
        found = measure_of([run["variants"][name] for run in runs], scenario, "ACC")
        assert found is not None
        means[name] = found.mean
    possible = means["oracle"] - means["linear"]
    return (means["map"] - means["linear"]) / possible if possible > 0 else None


def variants_figure(runs: Sequence[Result]) -> Figure:
    """Accuracy over experiences of the main variants, a panel a scenario."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    panels = figure.subplots(1, len(SCENARIOS))
    for axes, scenario in zip(panels, SCENARIOS, strict=True):
        curves, bands = {}, {}
        for name in DRAWN:
            own = [run["variants"][name][scenario]["accuracy_over_experiences"] for run in runs]
            curves[TITLES[name]] = np.mean(own, axis=0)
            if len(runs) > 1:
                bands[TITLES[name]] = np.std(own, axis=0, ddof=1)
        plot_accuracy_over_experiences(curves, deviations=bands, ax=axes)
        axes.set(title=SCENARIOS[scenario], ylim=(0, 105))
        axes.get_legend().remove()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.suptitle(_title(runs[0]))
    return figure


def combinations_table(runs: Sequence[Result]) -> Table:
    """Priors by their accuracies on the validation split, in percent.

    The columns are of so many images a class for the Gaussian classifiers. The best are those of
    the highest Class-IL ACC, averaged over these numbers, then of Task-IL. Trained heads have
    learned from all images: with them, and of them alone, there is only what they answer beside
    Gaussians that have, too.
    """
    by_images: dict[int | None, list[Result]] = {}
    for run in sorted(runs, key=lambda run: run["images_per_class"] or math.inf):
        by_images.setdefault(run["images_per_class"], []).append(run)
    alone, of_heads = [], []
    for name in runs[0]["variants"]:
        if "linear" not in name:
            alone.append(_combination(name, by_images))
        elif None in by_images:
            only = {n: some if n is None else [] for n, some in by_images.items()}
            of_heads.append(_combination(name, only))
    alone.sort(key=lambda row: row[0], reverse=True)
    of_heads.sort(key=lambda row: row[0], reverse=True)
    counts = ["all images" if n is None else f"{n} images" for n in by_images]
    seeds = {count: len(some) for count, some in zip(counts, by_images.values(), strict=True)}
    num_seeds = f"{len(runs) // len(seeds)} seeds"
    if len(set(seeds.values())) > 1:
        num_seeds = f"Seeds: {', '.join(f'{num} of {count}' for count, num in seeds.items())}"
    return Table(
        heads=tuple(
            (f"{title}, {count}",) for title in SCENARIOS.values() for count in [*counts, "mean"]
        ),
        rows=tuple(row for _, row in [*alone[:SHOWN], *of_heads[:SHOWN_OF_HEADS]]),
        title=f"{_title(runs[0])}, validation split",
        notes=(
            f"{num_seeds}, {runs[0]['num_experiences']} experiences; so many images a class "
            f"for the statistics. The best {min(SHOWN, len(alone))} of {len(alone)}, then the best "
            f"{min(SHOWN_OF_HEADS, len(of_heads))} of {len(of_heads)} with trained heads, which "
            "have learned from all images.",
        ),
        corner="combination",
    )


def _combination(
    name: str, by_images: Mapping[int | None, Sequence[Result]]
) -> tuple[list[float], Row]:
    """What to sort by, and the row, with means where it is complete."""
    order, entries = [], []
    for scenario in SCENARIOS:
        means = [
            float(np.mean([run["variants"][name][scenario]["ACC"] for run in some]))
            for some in by_images.values()
            if some
        ]
        is_whole = len(means) == len(by_images)
        missing = [NOTHING] * (len(by_images) - len(means))
        texts = [
            *missing,
            *map(percent, means),
            percent(float(np.mean(means))) if is_whole else NOTHING,
        ]
        entries += [Entry(text) for text in texts]
        order.append(float(np.mean(means)))
    return order, Row(name, tuple(entries))


def _title(result: Result) -> str:
    return f"{METHODS[result['method']].title}: {_setting_title(result)}"


def _setting_title(result: Result) -> str:
    """The setting, with as many tasks as were learned, and images for the statistics."""
    setting, learned = SETTINGS[result["setting"]], result["num_experiences"]
    title = setting.title
    if learned != setting.num_experiences:
        title = re.sub(r", first \d+ of \d+ tasks", "", title) + f", {learned} tasks"
    images = result["images_per_class"]
    if images is not None and result["judged_on"] == "test_stream":
        title += f", statistics of {images} images a class"
    return title


def _section(table: Table) -> str:
    return f"## {table.title}\n\n{as_markdown(table)}"


def page_of(folder: Path) -> str:
    """The page of a folder's results: every table, and where the figures are.

    Raises:
        ValueError: There are none, or see `load`.
    """
    parts = []
    tested = load(folder, "test_stream")
    beside: dict[tuple[Any, ...], dict[Group, list[Result]]] = {}
    for group, runs in tested.items():
        alike = (group[0], runs[0]["num_experiences"], runs[0]["images_per_class"])
        beside.setdefault(alike, {})[group] = runs
    parts += [_section(overview_table(groups)) for groups in beside.values()]
    for (setting, method), runs in tested.items():
        parts += [_section(variants_table(runs)), f"![{_title(runs[0])}]({setting}_{method}.png)"]
    for runs in load(folder, "valid_stream").values():
        parts.append(_section(combinations_table(runs)))
    if not parts:
        raise ValueError(f"Expected JSONs of benchmarks.gaussian in {folder}, got none.")
    return "\n\n".join(parts) + "\n"


def write_report(folder: Path) -> Path:
    """Write the tables and figures of a folder's results into it; returns the page."""
    page = folder / "gaussian.md"
    save_text(page_of(folder), page)
    for (setting, method), runs in load(folder, "test_stream").items():
        with whole_file(folder / f"{setting}_{method}.png") as draft:
            variants_figure(runs).savefig(draft, dpi=120)
    return page


def main() -> None:
    """Report on a folder from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("results/gaussian"))
    try:
        page = write_report(parser.parse_args().folder)
    except ValueError as error:
        parser.error(str(error))
    print(page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
