"""From the JSONs of `run` to tables, figures and one self-contained HTML page; never trains.

    python -m benchmarks.report results
    python -m benchmarks.report results --experiment table4 --scale lab --latex

Shows every table and figure of the paper for which results are there, then every setting.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.cells import Result
from benchmarks.experiments import EXPERIMENTS, title_of
from benchmarks.figures import (
    Picture,
    analysis_picture,
    experiment_pictures,
    method_picture,
    name_of,
    setting_pictures,
)
from benchmarks.hyperparameters import has_values
from benchmarks.loading import by_method, in_order, load_results, provenance, superseded
from benchmarks.markup import as_latex, as_markdown, as_text, escape_latex, escape_markdown
from benchmarks.methods import METHODS
from benchmarks.names import expect_known
from benchmarks.orders import order_tables
from benchmarks.page import Figures, Section, write_page
from benchmarks.settings import SCALES, SETTINGS
from benchmarks.tables import (
    comparison_table,
    experiment_table,
    numbers_behind,
    remarks,
    results_of,
)
from benchmarks.whole_files import expect_writable, save_text
from benchmarks.without_runs import (
    COMMANDS,
    data_section,
    hyperparameters_section,
    scales_without_runs,
    shown,
    skipped_data,
)


def make_sections(
    results: Sequence[Result],
    folder: Path,
    *,
    experiment: str | None = None,
    scale: str | None = None,
    setting: str | None = None,
) -> list[Section]:
    """Make all that a report shows but its figures, which `write_report` draws.

    Args:
        results: Of any tables, figures and settings.
        folder: Of the results.
        experiment: Only this table or figure; None: all, then all settings.
        scale: Only "paper", "lab" or "digits"; None: all.
        setting: Only results of this setting, and, if no experiment is named, the setting alone.

    Raises:
        ValueError: An unknown name, no results for it, or a setting for tables 5 or 6.
    """
    if experiment is not None:
        expect_known("table or figure", experiment, [*EXPERIMENTS, *COMMANDS])
    if setting is not None:
        expect_known("setting", setting, SETTINGS)
        if experiment in COMMANDS:
            raise ValueError(
                f"Expected no setting for {experiment}, which has those of a scale beside each "
                f"other, got {setting}: leave it out."
            )
        results = [result for result in results if result["setting"] == setting]
    scales = SCALES if scale is None else [expect_known("scale", scale, SCALES)]
    sections = []
    if experiment is not None or setting is None:
        for name in EXPERIMENTS if experiment is None else {experiment} & EXPERIMENTS.keys():
            for one in scales:
                chosen = in_order(results_of(name, one, results))
                if chosen:
                    sections.append(_experiment_section(name, one, chosen, folder))
    if setting is None:
        sections += _sections_without_runs(results, folder, experiment, scale)
    if experiment is None:
        for name in SETTINGS:
            chosen = [r for r in results if r["setting"] == name and r["method"] in METHODS]
            if chosen and _scale_of(name) in scales:
                sections.append(_setting_section(name, in_order(chosen), folder))
        there = {id(result) for section in sections for result in section.results}
        left = [r for r in results if id(r) not in there and _scale_of(r["setting"]) in scales]
        analyses = by_method(in_order(left)).values()
        sections += [_analysis_section(runs, folder) for runs in analyses]
    if not sections:
        wanted = ", ".join(name for name in (experiment, scale, setting) if name is not None)
        first = f"compare {experiment}" if experiment is not None else "run"
        if experiment in COMMANDS:
            first = COMMANDS[experiment].rpartition("benchmarks.")[2]
        elif experiment is not None and scale is not None:
            first += f" --scale {scale}"
        raise ValueError(
            f"Expected results{f' of {wanted}' if wanted else ''} in {folder.name}/, got none: run "
            f"`python -m benchmarks.{first}` first."
        )
    return sections


def _sections_without_runs(
    results: Sequence[Result], folder: Path, experiment: str | None, scale: str | None
) -> list[Section]:
    sections = []
    if experiment == "table5":
        sections = [hyperparameters_section(scale or "paper")]
    elif experiment is None:
        of_results = [one for one in scales_without_runs(results) if scale in (None, one)]
        sections = [hyperparameters_section(one) for one in of_results]
    counted = data_section(folder) if experiment in (None, "table6") else None
    return [*sections, *([counted] if counted is not None else [])]


def _experiment_section(name: str, scale: str, results: list[Result], folder: Path) -> Section:
    experiment = EXPERIMENTS[name]
    if experiment.columns:
        orders = order_tables(name, scale, results) if name == "grid" else []
        tables = [experiment_table(name, scale, results), *orders]
    else:
        tables = numbers_behind(name, results)
    place = ["--scale", scale, *_seeds(results), "--out", shown(folder)]
    cells = experiment.cells(scale, [0])
    if not all(has_values(method, c.setting) for c in cells for method in c.sources):
        place.append("--tune")
    return Section(
        anchor=f"{name}-{scale}",
        title=f"{name}: {experiment.title}, {scale} scale",
        command=shlex.join(["python", "-m", "benchmarks.compare", name, *place]),
        results=results,
        tables=tables,
        notes=[*superseded(results), *([] if tables else remarks(name))],
        draw=lambda figures: (experiment_pictures(name, scale, results, figures), ()),
    )


def _setting_section(setting: str, results: list[Result], folder: Path) -> Section:
    def draw(figures: Path) -> Figures:
        methods = by_method(results).values()
        closed = figures / "details"
        details = [(method_picture(runs, closed), _details(runs)) for runs in methods]
        return setting_pictures(setting, results, figures), details

    return Section(
        anchor=f"setting-{setting}",
        title=f"{setting}: {SETTINGS[setting].title}",
        command="\n".join(_commands(setting, results, folder)),
        results=results,
        tables=[comparison_table(results)],
        notes=superseded(results),
        draw=draw,
    )


def _analysis_section(results: list[Result], folder: Path) -> Section:
    """An analysis of a setting, or with changes, of which no figure of the paper is."""
    name, setting = results[0]["method"], results[0]["setting"]
    caption = f"{title_of(name, results[0]['changes'])}: {SETTINGS[setting].title}"
    return Section(
        anchor=name_of(results),
        title=caption,
        command="\n".join(_commands(setting, results, folder)),
        results=results,
        tables=[],
        notes=[*superseded(results), *remarks(name)],
        draw=lambda figures: ([analysis_picture(results, caption, figures)], ()),
    )


def _commands(setting: str, results: Sequence[Result], folder: Path) -> Iterable[str]:
    """A line for all that runs with the chosen hyperparameters, then one a change."""
    changes = {json.dumps(r["changes"], sort_keys=True): r["changes"] for r in results}
    for change in changes.values():
        own = [result for result in results if result["changes"] == change]
        methods = dict.fromkeys(result["method"] for result in own)
        words = ["--methods", *methods, "--settings", setting]
        for name, value in sorted(change.items()):
            words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
        words += [*_seeds(own), "--out", shown(folder)]
        yield shlex.join(["python", "-m", "benchmarks.compare", *words])


def _details(runs: Iterable[Result]) -> str:
    names = ("seed", "epochs", "batch_size", "hyperparameters", "memory", "provenance")
    return "\n".join(json.dumps({name: run.get(name) for name in names}) for run in runs)


def _seeds(results: Iterable[Result]) -> list[str]:
    return ["--seeds", *map(str, sorted({result["seed"] for result in results}))]


def _scale_of(setting: str) -> str:
    scale = setting.partition("-")[0]
    return scale if scale in SCALES else "paper"


def write_report(
    sections: Sequence[Section], skipped: Mapping[str, str], folder: Path, out: Path | None = None
) -> list[Path]:
    """Draw figures, write ``report.html``, ``report.md`` and ``report.tex``, and return all paths.

    Args:
        sections: In their order.
        skipped: Why a file is left out, by its name.
        folder: Of the results.
        out: Where the three go, and the figures into its folder ``figures``; None: the folder of
            the results.

    Returns:
        Figures first.
    """
    out = folder if out is None else out
    sections = [section.drawn(out / "figures") for section in sections]
    figures = [picture.path for section in sections for picture in _pictures(section)]
    markdown, latex = out / "report.md", out / "report.tex"
    save_text(_markdown(sections, skipped, folder, out), markdown)
    save_text(_latex(sections, out), latex)
    page = write_page(_title(folder), sections, skipped, out / "report.html")
    return [*figures, markdown, latex, page]


def _title(folder: Path) -> str:
    return f"avalanche-dlcpa: {folder.resolve().name}"


def _pictures(section: Section) -> list[Picture]:
    return [*section.pictures, *(picture for picture, _ in section.details)]


def _markdown(
    sections: Sequence[Section], skipped: Mapping[str, str], folder: Path, out: Path | None = None
) -> str:
    out = folder if out is None else out
    parts = [f"# {escape_markdown(_title(folder))}"]
    for section in sections:
        parts.append(f"## {section.title}")
        parts.append(f"```console\n{section.command}\n```")
        for heading, table in section.headed_tables:
            parts += [*([f"### {heading}"] if heading else []), as_markdown(table)]
        parts += map(escape_markdown, section.notes)
        parts += [
            f"![{picture.caption}]({picture.path.relative_to(out).as_posix()})"
            for picture in section.pictures
        ]
    parts.append("## Provenance")
    origins = provenance([result for section in sections for result in section.results])
    parts.append("\n".join(f"- {name}: {value}" for name, value in origins.items()))
    if skipped:
        parts.append("## Files left out")
        lines = (f"- `{name}`: {escape_markdown(reason)}" for name, reason in skipped.items())
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _latex(sections: Iterable[Section], out: Path) -> str:
    parts = []
    for section in sections:
        parts += [
            f"\\section{{{escape_latex(section.title)}}}",
            *map(as_latex, section.tables),
            *map(escape_latex, section.notes),
            *(_latex_figure(picture, out) for picture in section.pictures),
            "\\clearpage",
        ]
    whole = "\n\n".join(parts)
    return (
        "\\documentclass{article}\n\\usepackage{booktabs,graphicx}\n\\begin{document}\n\n"
        f"{whole}\n\n\\end{{document}}\n"
    )


def _latex_figure(picture: Picture, out: Path) -> str:
    place = picture.path.relative_to(out).as_posix()
    return (
        "\\begin{figure}\n\\centering\n"
        f"\\includegraphics[width=\\textwidth]{{{place}}}\n"
        f"\\caption{{{escape_latex(picture.caption)}}}\n\\end{{figure}}"
    )


def main() -> None:
    """Report a folder from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--experiment", help=f"one of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--scale", help=f"one of {', '.join(SCALES)}")
    parser.add_argument("--setting", help="only results of this setting")
    parser.add_argument("--out", type=Path, help="where the report goes; default: the folder")
    parser.add_argument("--latex", action="store_true", help="print LaTeX instead of text")
    words = parser.parse_args()
    results, skipped = load_results(words.folder)
    skipped |= skipped_data(words.folder)
    for name, reason in skipped.items():
        print(f"skipped {name}: {reason}")
    try:
        sections = make_sections(
            results,
            words.folder,
            experiment=words.experiment,
            scale=words.scale,
            setting=words.setting,
        )
    except ValueError as error:
        parser.error(str(error))
    for section in sections:  # first, as they are there whether or not the report can be written
        print(f"\n{section.title}\n")
        for heading, table in section.headed_tables:
            title = f"{heading}\n" if heading else ""
            print(as_latex(table) if words.latex else title + as_text(table))
        for note in section.notes:
            print(escape_latex(note) if words.latex else note)
    out = words.folder if words.out is None else words.out
    try:
        expect_writable(out)
        paths = write_report(sections, skipped, words.folder, out)
    except OSError as error:
        sys.exit(
            f"Expected {out} to take the report, got {type(error).__name__}: {error}. The tables "
            "above are whole; name another folder with --out."
        )
    print("\nwrote")
    for path in paths:
        print(f"  {path}")


if __name__ == "__main__":
    main()
