"""Tables of the throughput from synthetic figures, computed by hand."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import throughput_report as report
from benchmarks.loading import load_results
from benchmarks.markup import as_markdown
from benchmarks.phases import PHASES
from benchmarks.tables import comparison_table

ROOT = Path(__file__).parents[1]


def configuration(
    head="mocov2", *, width=64, precision="float32", ratio=1.05, speed=100.0, fed=0.04
):
    rest = (1 - fed) / (len(PHASES) - 2)
    shares = {name: fed / 2 if name in ("loading", "views") else rest for name in PHASES}
    return {
        "head": head, "network": "resnet18", "width": width, "batch_size": 32,
        "precision": precision, "layout": "channels_last", "iteration_ms": 100.0 * ratio,
        "passes_ms": 100.0, "ratio": ratio, "images_per_second": speed, "peak_mb": 512.4,
        "shares": shares,
    }  # fmt: skip


def growth_row(experience, *, ratio=1.0, other=2_000_000):
    own = 1000 * experience
    return {
        "experience": experience, "classes": 10 * experience,
        "iteration_ms": 20.0 * ratio, "first_ms": 20.0, "ratio": ratio,
        "kept_bytes": own + other, "classifier_bytes": own, "other_bytes": other,
    }  # fmt: skip


RESULT = {
    "configurations": [
        configuration(),
        configuration("byol", ratio=1.12, speed=60.0, fed=0.02),
        configuration(precision="bf16", speed=190.0),
        configuration("byol", precision="bf16", speed=90.0),
        configuration(width=16, ratio=1.2, fed=0.2),
    ],
    "classes": [{**growth_row(100), "experience": None, "ratio": 1.01}],
    "provenance": {"device": "cpu"},
    "growth": [growth_row(1), growth_row(2, ratio=1.02), growth_row(100, ratio=0.9)],
}


def test_the_worst_configuration_counts():
    rows = {row.label: [e.text for e in row.entries] for row in report.targets_table(RESULT).rows}
    assert list(rows.values()) == [
        ["at most 1.1", "1.120", "no"],
        ["at most 1.22", "1.120", "yes"],
        ["at most 1.25", "1.200", "yes"],
        ["at least 1.6", "1.500", "no"],
        ["at most 0.05", "0.040", "yes"],
        ["at most 1.03", "0.900", "yes"],
        ["at most 1.03", "1.020", "yes"],
        ["at most 1", "1.000", "yes"],
        ["at most 3", "–", "–"],
    ]


def test_a_gpu_has_its_own_target():
    rows = report.targets_table({**RESULT, "provenance": {"device": "cuda:0"}}).rows
    texts = [[entry.text for entry in row.entries] for row in rows]
    assert texts[-1] == ["at most 3", "105.000", "no"]  # that of MoCoV2 in bfloat16
    assert [text[1] for text in texts[:5]] == 5 * ["–"]  # those of a CPU
    assert texts[5][1] == "0.900"


def test_shares_of_a_gpu_are_not_held_against_its_iterations():
    for device in ("cpu", "cuda"):
        table = report.configurations_table({**RESULT, "provenance": {"device": device}})
        place = table.heads.index(("by shares",))
        assert (table.rows[0].entries[place].text == "–") == (device == "cuda")


def test_the_tables_of_the_readme_are_those_of_the_results():
    result = json.loads((ROOT / "benchmarks" / "results" / "throughput.json").read_text())
    text = (ROOT / "benchmarks" / "README.md").read_text()
    for table in report.TABLES:
        assert as_markdown(table(result)) in text


def test_what_is_said_of_the_throughput_is_so():
    result = json.loads((ROOT / "benchmarks" / "results" / "throughput.json").read_text())
    for row in result["configurations"]:
        pairs = zip(*(row["rounds"][name] for name in ("iteration_ms", "passes_ms")), strict=True)
        ratios = [iteration / passes for iteration, passes in pairs]
        assert len(ratios) == 5
        assert max(ratios) / min(ratios) < 1.05
    wide = [
        row["ratio"]
        for row in result["configurations"]
        if (row["width"], row["precision"]) == (64, "float32")
    ]
    text = " ".join((ROOT / "GUIDE.md").read_text().split())
    assert f"takes {min(wide):.2f} to {max(wide):.2f} times as long as the passes" in text


def test_channels_last_is_the_faster_layout_and_its_table_is_in_the_readme():
    result = json.loads((ROOT / "benchmarks" / "results" / "throughput_layouts.json").read_text())
    assert (
        as_markdown(report.configurations_table(result))
        in (ROOT / "benchmarks" / "README.md").read_text()
    )
    speeds = {(r["width"], r["layout"]): r["iteration_ms"] for r in result["configurations"]}
    gains = [speeds[width, "contiguous"] / speeds[width, "channels_last"] for width in (64, 16)]
    assert min(gains) > 1.05


@pytest.mark.parametrize("part", ["configurations", "growth"])
def test_what_was_not_measured_is_left_open(part):
    rows = report.targets_table({**RESULT, part: []}).rows
    open_ones = [row for row in rows if row.entries[1].text == "–"]
    assert len(open_ones) == {"configurations": 6, "growth": 4}[part]
    assert {row.entries[2].text for row in open_ones} == {"–"}


def test_every_figure_from_the_command_line(tmp_path, monkeypatch, capsys):
    path = tmp_path / "throughput.json"
    path.write_text(json.dumps(RESULT))
    monkeypatch.setattr(sys, "argv", ["throughput_report", str(path)])
    report.main()
    said = capsys.readouterr().out
    name = "byol, resnet18, width 64, batch 32, float32, channels last"
    by_shares = 1 / (3 * 0.98 / (len(PHASES) - 2))  # three phases are passes
    assert f"| {name} | 112.0 | 100.0 | 1.120 | {by_shares:.3f} | 60.0 | 512 |" in said
    assert "| 100 | 1000 | 18.0 | 20.0 | 0.900 | 100 | 2000 |" in said
    assert "| 1000 | 20.0 | 20.0 | 1.010 | 100 | 2000 |" in said
    shares = [line for line in said.splitlines() if line.startswith(f"| {name} | 1.0 | 1.0 |")]
    assert len(shares) == 1


def test_what_bfloat16_does_to_accuracy_is_told_as_measured():
    results, skipped = load_results(ROOT / "benchmarks" / "results" / "precision")
    assert not skipped
    assert {len({r["provenance"]["commit"] for r in results}), len(results)} == {1, 4}
    table = as_markdown(comparison_table(results))
    assert table in (ROOT / "benchmarks" / "README.md").read_text()
