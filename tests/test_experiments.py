"""Every table and figure of the paper, on digits: run, then reported."""

from pathlib import Path

import pytest

from benchmarks.data_statistics import row
from benchmarks.experiments import EXPERIMENTS
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
    assert row("digits") == ("digits", "1 x 8 x 8", "10", "125 to 131", "14 to 15", "35 to 37")
