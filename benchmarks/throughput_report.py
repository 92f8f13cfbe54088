"""Tables of `benchmarks.throughput` from its JSON, with what we wanted to reach; never measures.

python -m benchmarks.throughput_report results/throughput.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.markup import NOTHING, Entry, Row, Table, as_markdown
from benchmarks.phases import PHASES

PASSES = ("plastic forward and backward", "momentum forward", "stable forward")
AUTHORS_RATIO = 0.60 / 0.49  # seconds of the authors' iteration and of the passes in it, on a CPU
Measured = dict[str, Any]


def configurations_table(result: Measured) -> Table:
    """A row a configuration: milliseconds, ratio, images a second and memory.

    Beside the ratio to the passes timed alone, the iteration over its own passes by the shares; not
    on a GPU, whose shares are those of iterations hook by hook, waited for in each phase.
    """
    heads = ("iteration, ms", "passes, ms", "ratio", "by shares", "images a second", "peak, MB")
    formats = {
        "iteration_ms": "{:.1f}",
        "passes_ms": "{:.1f}",
        "ratio": "{:.3f}",
        "by_shares": "{:.3f}",
        "images_per_second": "{:.1f}",
        "peak_mb": "{:.0f}",
    }
    rows = []
    for row in result["configurations"]:
        figures = {**row, "by_shares": 1 / sum(row["shares"][name] for name in PASSES)}
        texts = {name: text.format(figures[name]) for name, text in formats.items()}
        if _is_on_gpu(result):
            texts["by_shares"] = NOTHING
        entries = tuple(map(Entry, texts.values()))
        rows.append(Row(_name_of(row), entries))
    return Table(tuple((head,) for head in heads), tuple(rows), corner="configuration")


def shares_table(result: Measured) -> Table:
    """The share of each phase in an iteration, in percent."""
    rows = [
        Row(_name_of(row), tuple(Entry(f"{100 * row['shares'][name]:.1f}") for name in PHASES))
        for row in result["configurations"]
    ]
    return Table(tuple((name,) for name in PHASES), tuple(rows), corner="configuration")


def growth_table(result: Measured) -> Table:
    """Time and memory as experiences come in."""
    return _growth_table(result["growth"], ("experience", "classes"))


def classes_table(result: Measured) -> Table:
    """Time and memory of a first experience of more and more classes."""
    return _growth_table(result["classes"], ("classes",))


def _growth_table(measured: Iterable[Measured], counts: tuple[str, ...]) -> Table:
    corner, *others = counts
    rows = [
        Row(
            str(row[corner]),
            (
                *(Entry(str(row[name])) for name in others),
                Entry(f"{row['iteration_ms']:.1f}"),
                Entry(f"{row['first_ms']:.1f}"),
                Entry(f"{row['ratio']:.3f}"),
                Entry(f"{row['classifier_bytes'] / 1e3:.0f}"),
                Entry(f"{row['other_bytes'] / 1e3:.0f}"),
            ),
        )
        for row in measured
    ]
    heads = (
        *(*others, "iteration, ms", "of a first experience beside it, ms", "ratio"),
        *("classifiers, kB", "all other tensors, kB"),
    )
    return Table(tuple((head,) for head in heads), tuple(rows), corner=corner)


def targets_table(result: Measured) -> Table:
    """What we wanted to reach, and what was measured: the worst configuration counts."""
    on_gpu = _where(result, head="mocov2", width=64, precision="bf16")
    wide = _where(result, width=64, precision="float32")
    small = _where(result, width=16, precision="float32")
    if _is_on_gpu(result):
        wide = small = []
    else:
        on_gpu = []
    slowdowns = _ratios(result["growth"])
    feeding = [row["shares"]["loading"] + row["shares"]["views"] for row in wide]
    rows = [
        _at_most("iteration over passes, width 64, float32", _ratios(wide), 1.10),
        _at_most("the same, against the authors' code", _ratios(wide), AUTHORS_RATIO),
        _at_most("iteration over passes, width 16, float32", _ratios(small), 1.25),
        _at_least("images a second, bf16 over float32, width 64", _speedups(result, wide), 1.6),
        _at_most("loading and views, share of an iteration, width 64, float32", feeding, 0.05),
        _at_most("time of an iteration, last experience over a first one", slowdowns[-1:], 1.03),
        _at_most("the same, any experience", slowdowns, 1.03),
        _at_most("tensors beyond classifiers, last over first", _increase(result), 1.0),
        _at_most(
            "milliseconds of an iteration on a GPU, MoCoV2, width 64, bf16",
            [row["iteration_ms"] for row in on_gpu],
            3.0,
        ),
    ]
    heads = (("wanted",), ("measured",), ("reached",))
    return Table(heads, tuple(rows), corner="figure")


def _is_on_gpu(result: Measured) -> bool:
    return result["provenance"]["device"].startswith("cuda")


def _where(result: Measured, **values: Any) -> list[Measured]:
    rows = result["configurations"]
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def _ratios(rows: Iterable[Measured]) -> list[float]:
    return [row["ratio"] for row in rows]


def _speedups(result: Measured, rows: Iterable[Measured]) -> list[float]:
    """Of each row, how many times as many images a second its twin in bfloat16 trains."""
    same = ("head", "network", "width", "batch_size", "layout")
    return [
        twin["images_per_second"] / row["images_per_second"]
        for row in rows
        for twin in _where(result, precision="bf16", **{name: row[name] for name in same})
    ]


def _increase(result: Measured) -> list[float]:
    rows = result["growth"]
    return [rows[-1]["other_bytes"] / rows[0]["other_bytes"]] if rows else []


def _at_most(label: str, values: list[float], bound: float) -> Row:
    return _target(label, f"at most {bound:.3g}", values, max, lambda worst: worst <= bound)


def _at_least(label: str, values: list[float], bound: float) -> Row:
    return _target(label, f"at least {bound:.3g}", values, min, lambda worst: worst >= bound)


def _target(
    label: str,
    wanted: str,
    values: list[float],
    worst_of: Callable[[list[float]], float],
    reached: Callable[[float], bool],
) -> Row:
    if not values:
        return Row(label, (Entry(wanted), Entry(NOTHING), Entry(NOTHING)))
    worst = worst_of(values)
    answer = "yes" if reached(worst) else "no"
    return Row(label, (Entry(wanted), Entry(f"{worst:.3f}"), Entry(answer)))


def _name_of(row: Measured) -> str:
    words = [row["head"], row["network"], f"width {row['width']}", f"batch {row['batch_size']}"]
    return ", ".join([*words, row["precision"], row["layout"].replace("_", " ")])


TABLES = (targets_table, configurations_table, shares_table, growth_table, classes_table)


def main() -> None:
    """Print the tables from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("path", type=Path, nargs="?", default=Path("results/throughput.json"))
    path = parser.parse_args().path
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        print("\n\n".join(as_markdown(table(result)) for table in TABLES))
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        parser.error(f"Expected {path} to be a result of benchmarks.throughput, got: {error!r}")


if __name__ == "__main__":
    main()
