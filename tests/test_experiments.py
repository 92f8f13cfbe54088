"""Every table and figure of the paper, on digits: run, then reported."""

from pathlib import Path

import pytest

from benchmarks import data_statistics, hyperparameter_table
from benchmarks.experiments import EXPERIMENTS
from benchmarks.methods import METHODS
from benchmarks.report import make_sections, write_report
from benchmarks.run import run_cell

README = Path(__file__).parents[1] / "benchmarks" / "README.md"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_table_or_figure_runs_on_digits_and_is_reported(name, tmp_path):
    experiment = EXPERIMENTS[name]
    results = [run_cell(cell) for cell in experiment.cells("digits", [0])]
    sections = make_sections(results, tmp_path, experiment=name, scale="digits")
    paths = write_report(sections, {}, tmp_path)
    page = paths[-1].read_text()
    assert f"python -m benchmarks.compare {name} --scale digits" in page
    (section,) = sections
    assert len(section.results) == len(results)
    num_pictures = 1 if name == "lambda" else len({r["setting"] for r in results})
    sizes = [picture.path.stat().st_size for picture in section.pictures]
    assert len(sizes) == num_pictures
    assert min(sizes) > 5000
    assert bool(section.tables) == (name not in ("linear-probe", "loss-surface"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_table_and_figure_has_its_command_in_the_readme(name):
    text = README.read_text()
    assert f"python -m benchmarks.compare {name} " in text or f"`{name}`" in text


def test_data_statistics_count_the_images_of_each_class():
    counted = ("1 x 8 x 8", "10", "125 to 131", "14 to 15", "35 to 37")
    assert data_statistics.row("digits") == counted
    (line,) = data_statistics.table(["digits"]).rows
    assert [line.label, *(entry.text for entry in line.entries)] == ["digits", *counted]


@pytest.mark.real_data
def test_data_statistics_stand_above_those_of_the_paper(data_root):
    ours, paper = data_statistics.table(["CIFAR-100"], dataset_root=data_root).rows
    assert ours.entries == paper.entries
    assert [ours.label, paper.label] == ["CIFAR-100", "CIFAR-100, paper"]


@pytest.mark.parametrize(
    ("setting", "title", "entries"),
    [
        ("tiny-10", "GEM", ["64", "lr 0.05, memory_strength 0.5", "published"]),
        ("cifar100-20", "DER++", ["32", "lr 0.03, alpha 0.1, beta 0.5", "published"]),
        ("cifar100-10", "EWC", ["32", "–", "none: benchmarks.tune"]),
        ("lab-cifar100", "Naive", ["32", "lr 0.05", "benchmarks.tune"]),
    ],
)
def test_hyperparameters_come_with_their_source(setting, title, entries):
    shown = hyperparameter_table.table(setting)
    rows = {row.label: [entry.text for entry in row.entries] for row in shown.rows}
    assert rows[title] == entries
    assert len(rows) == sum(method.trains_as is None for method in METHODS.values())
    assert bool(shown.notes) == (not setting.startswith("lab"))
