"""From the JSONs of `run` to tables, figures and one self-contained HTML page; never trains.

python -m benchmarks.report demo-results
"""

from __future__ import annotations

import argparse
import base64
import html
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from avalanche_dlcpa.plots import plot_accuracy_matrix, plot_accuracy_over_experiences
from benchmarks.methods import METHODS
from benchmarks.settings import SETTINGS

Result = dict[str, Any]

COLUMNS = (
    "method",
    "Class-IL ACC",
    "Task-IL ACC",
    "Class-IL BWT",
    "Task-IL BWT",
    "seconds",
)
SCENARIOS = {"class_il": "Class-IL", "task_il": "Task-IL"}


def load_results(folder: Path, setting: str | None = None) -> list[Result]:
    """Results of a folder in the order of `METHODS`, of one setting or of all."""
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("*_seed*.json"))]
    order = {method: index for index, method in enumerate(METHODS)}
    chosen = [r for r in results if setting in (None, r["setting"])]
    return sorted(chosen, key=lambda r: (order[r["method"]], r["seed"]))


def rows(results: Iterable[Result]) -> list[tuple[str, ...]]:
    """The cells of `COLUMNS` for each result, accuracies in percent, training time in seconds."""
    return [
        (
            METHODS[r["method"]].title,
            *(
                f"{100 * r[scenario][name]:.2f}"
                for name in ("ACC", "BWT")
                for scenario in SCENARIOS
            ),
            f"{r['training_seconds']:.0f}",
        )
        for r in results
    ]


def _percent(fraction: float) -> str:
    return f"{round(100 * fraction, 2) + 0.0:.2f}"  # adding 0 turns -0.0 into 0.0


def text_table(results: Iterable[Result]) -> str:
    """The table for a terminal."""
    lines = [COLUMNS, *rows(results)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def markdown_table(results: Iterable[Result]) -> str:
    """The table for a README."""
    lines = [COLUMNS, ("---", *["---:"] * (len(COLUMNS) - 1)), *rows(results)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_figures(results: list[Result], folder: Path) -> list[Path]:
    """Draw the accuracy matrices of each result and the accuracies over experiences, as PNG.

    Args:
        results: Of one setting and one seed.
        folder: Where the figures go.

    Returns:
        The paths: first the curves, then one a result.
    """
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    for axes, (scenario, title) in zip(figure.subplots(1, 2), SCENARIOS.items(), strict=True):
        plot_accuracy_over_experiences(_curves(results, scenario), ax=axes)
        axes.set_title(title)
        axes.set_ylim(0, 102)
        axes.get_legend().remove()
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), handlelength=3)
    paths = [_save(figure, folder / "accuracy_over_experiences.png")]
    for result in results:
        matrices = [_matrix(result, scenario) for scenario in SCENARIOS]
        size = 1.6 + 0.55 * len(matrices[0])
        figure = Figure(figsize=(2 * size + 2, size + 0.6), layout="constrained")
        for axes, matrix, title in zip(
            figure.subplots(1, 2), matrices, SCENARIOS.values(), strict=True
        ):
            plot_accuracy_matrix(matrix, ax=axes, title=title)
        figure.suptitle(METHODS[result["method"]].title)
        paths.append(_save(figure, folder / f"accuracy_matrix_{result['method']}.png"))
    return paths


def _curves(results: list[Result], scenario: str) -> dict[str, list[float]]:
    return {METHODS[r["method"]].title: r[scenario]["accuracy_over_experiences"] for r in results}


def _matrix(result: Result, scenario: str) -> np.ndarray:
    return np.array(result[scenario]["accuracy_matrix"], dtype=float)


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=110)
    return path


def write_page(results: list[Result], figures: list[Path], path: Path) -> Path:
    """Write one HTML page that holds everything, pictures included, and return its path."""
    first = results[0]
    title = SETTINGS[first["setting"]].title
    curves, *matrices = figures
    details = "\n".join(
        f"<section><h2>{_text(METHODS[r['method']].title)}</h2>{_picture(figure)}"
        f"<details><summary>Settings and accuracies</summary><pre>"
        f"{_text(json.dumps(r, indent=1))}</pre></details></section>"
        for r, figure in zip(results, matrices, strict=True)
    )
    path.write_text(
        _PAGE.format(
            title=_text(title),
            facts=_text(
                f"Seed {first['seed']}, {first['num_experiences']} experiences, {first['epochs']} "
                f"epochs each, batches of {first['batch_size']}. Accuracies in percent on "
                f"{first['judged_on'].replace('_', ' ')}, training time in seconds."
            ),
            table=_html_table(results),
            curves=_picture(curves),
            details=details,
            provenance=_text(json.dumps(first["provenance"], indent=1)),
        ),
        encoding="utf-8",
    )
    return path


def _text(value: str) -> str:
    return html.escape(value)


def _picture(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{_text(path.stem.replace("_", " "))}" src="data:image/png;base64,{data}">'


def _html_table(results: list[Result]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>"
        for row in rows(results)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  background: #fff; color: #1a1a1a; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #8886; }}
th:first-child, td:first-child {{ text-align: left; }}
img {{ max-width: 100%; background: #fff; border-radius: 6px; margin: .5rem 0; }}
pre {{ overflow-x: auto; font-size: .85rem; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #16181c; color: #e6e6e6; }} }}
</style></head><body>
<h1>{title}</h1><p>{facts}</p>
{table}
{curves}
{details}
<h2>Provenance</h2><pre>{provenance}</pre>
</body></html>
"""


def write_report(results: list[Result], folder: Path) -> list[Path]:
    """Write figures and page beside the results; the page comes last in the returned paths.

    Raises:
        ValueError: No results.
    """
    if not results:
        raise ValueError(f"Expected results in {folder.name}/, got none: run benchmarks.run first.")
    figures = write_figures(results, folder)
    return [*figures, write_page(results, figures, folder / "report.html")]


def main() -> None:
    """Report a folder from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--setting", choices=SETTINGS)
    words = parser.parse_args()
    results = load_results(words.folder, words.setting)
    paths = write_report(results, words.folder)
    print(text_table(results))
    print(*paths, sep="\n")


if __name__ == "__main__":
    main()
