"""Every table and figure of the paper, on digits: run, then reported."""

import json
import re
import sys
from pathlib import Path
from urllib.error import URLError

import pytest

from benchmarks import compare, data_statistics, hyperparameter_table, hyperparameters
from benchmarks.cells import Cell
from benchmarks.experiments import EXPERIMENTS
from benchmarks.hyperparameters import hyperparameters_of
from benchmarks.methods import METHODS
from benchmarks.report import make_sections, write_report
from benchmarks.run import run_cell
from benchmarks.settings import SETTINGS
from benchmarks.tune import to_tune
from benchmarks.without_runs import COMMANDS

DER_OF_THE_PAPER = "lr 0.03, alpha 0.1, beta 0.5"
GEM_OF_THE_PAPER = "learning rate 0.05, batch size 64"
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
    num_pictures = 1 if name in ("lambda", "table10") else len({r["setting"] for r in results})
    sizes = [path.stat().st_size for path in paths if path.suffix == ".png"]
    assert len(sizes) == num_pictures
    assert min(sizes) > 5000
    assert bool(section.tables) == (name not in ("linear-probe", "loss-surface"))


def commands():
    """Of the README's table of all tables and figures: what stands behind `python -m`."""
    rows = re.findall(r"\| `python -m benchmarks\.(\w+)(.*?)` \|", README.read_text())
    return {(words.split()[0] if module == "compare" else module): words for module, words in rows}


@pytest.mark.parametrize("name", [*EXPERIMENTS, "hyperparameter_table", "data_statistics"])
def test_every_table_and_figure_has_its_command_in_the_readme(name):
    beyond_the_paper = {"heads", "ssl-baselines", "grid"}
    assert (name in commands()) == (name not in beyond_the_paper)
    assert (f"`{name}`" in README.read_text()) >= (name in beyond_the_paper)


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name in commands()])
def test_the_command_of_the_readme_leaves_no_cell_without_hyperparameters(name):
    words = commands()[name]
    assert words.split()[1:3] == ["--scale", "lab"]
    for cell in EXPERIMENTS[name].cells("lab", [0]):
        source = SETTINGS[cell.setting].tuned_on or cell.setting
        unknown = {method for method in cell.sources if not is_known(method, cell.setting)}
        assert unknown <= (set(to_tune(source)) if "--tune" in words else set()), cell.name


def is_known(method, setting):
    try:
        return bool(hyperparameters_of(method, setting))
    except ValueError:
        return False


def test_data_statistics_count_the_images_of_each_class():
    counted = ("1 x 8 x 8", "10", "125 to 131", "14 to 15", "35 to 37")
    assert data_statistics.row("digits") == counted
    (line,) = data_statistics.table({"digits": counted}).rows
    assert [line.label, *(entry.text for entry in line.entries)] == ["digits", *counted]


@pytest.mark.real_data
def test_data_statistics_stand_above_those_of_the_paper(data_root):
    counted = data_statistics.row("CIFAR-100", dataset_root=data_root)
    ours, paper = data_statistics.table({"CIFAR-100": counted}).rows
    assert ours.entries == paper.entries
    assert [ours.label, paper.label] == ["CIFAR-100", "CIFAR-100, paper"]


def test_what_was_counted_is_in_the_report(tmp_path, monkeypatch, capsys):
    words = ["data_statistics", "--data", "digits", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    data_statistics.main()
    assert "125 to 131" in capsys.readouterr().out
    (section,) = make_sections([], tmp_path, experiment="table6")
    assert section.command.endswith(f"data_statistics --data digits --out {tmp_path.name}")
    monkeypatch.chdir(tmp_path.parent)
    relative = Path(tmp_path.name) / ".." / tmp_path.name
    (same,) = make_sections([], relative, experiment="table6")
    assert same.command.endswith(f"--out {relative}")
    page = write_report([section], {}, tmp_path)[-1].read_text()
    assert "125 to 131" in page
    with pytest.raises(
        ValueError, match=r"got none: run `python -m benchmarks\.data_statistics` first"
    ):
        make_sections([], tmp_path / "other", experiment="table6")


def test_data_that_are_not_there_are_named(tmp_path, monkeypatch):
    def no_network(*_, **__):
        raise URLError("no network")

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", no_network)
    words = ["data_statistics", "--data", "CIFAR-100", "--dataset-root", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="FileNotFoundError: Expected `dataset_root` to be"):
        data_statistics.main()


def test_hyperparameters_of_the_paper_are_printed_and_in_the_report(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hyperparameter_table"])
    hyperparameter_table.main()
    printed = capsys.readouterr().out
    texts = ("learning rate 5e-4, batch size 64, KD weight 0.2, prototype weight 0.05", "OWM")
    assert all(text in printed for text in texts)
    (section,) = make_sections([], tmp_path, experiment="table5")
    assert "--setting cifar100-10 tiny-10" in section.command
    *_, markdown, latex, page = write_report([section], {}, tmp_path)
    for path in (markdown, page):
        assert all(text in path.read_text() for text in texts)
    assert "alpha\\_1 0.7" in latex.read_text()


def test_a_report_of_a_twin_has_its_hyperparameters_too(tmp_path):
    results = [run_cell(Cell("naive", setting)) for setting in ("digits", "digits-cifar100-10")]
    titles = [section.title for section in make_sections(results, tmp_path)]
    assert "table5: Hyperparameters, digits scale" in titles
    assert not [title for title in titles if title.startswith("table5") and "paper" in title]
    titles = [section.title for section in make_sections(results[:1], tmp_path)]
    assert not [title for title in titles if title.startswith("table5")]


@pytest.mark.parametrize("name", ["table5", "table6"])
def test_a_table_that_needs_no_runs_takes_no_setting(name, tmp_path):
    with pytest.raises(ValueError, match=f"no setting for {name}, .* got digits: leave it out"):
        make_sections([], tmp_path, experiment=name, setting="digits")


@pytest.mark.parametrize("name", ["table5", "table6"])
def test_a_table_that_needs_no_runs_is_answered_with_its_command(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compare", name])
    with pytest.raises(SystemExit):
        compare.main()
    assert f"got '{name}', which needs none: `{COMMANDS[name]}`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "title", "entries"),
    [
        (
            "tiny-10",
            "GEM",
            ["64", "lr 0.05, memory_strength 0.5", "published", GEM_OF_THE_PAPER],
        ),
        ("cifar100-20", "DER++", ["32", DER_OF_THE_PAPER, "published for cifar100-10", "–"]),
        ("cifar100-10", "EWC", ["32", "–", "not tuned yet", "–"]),
        ("cifar100-10", "FAS", ["–", "–", "–", "learning rate 0.001, batch size 32"]),
        ("digits", "SI", ["32", "lr 0.01, strength 0.1, last_epochs 1", "benchmarks.tune", "–"]),
    ],
)
def test_hyperparameters_come_with_their_source(setting, title, entries):
    shown = hyperparameter_table.table(setting)
    rows = {row.label: [entry.text for entry in row.entries] for row in shown.rows}
    assert rows[title] == entries
    of_the_paper_alone = 5 if setting in hyperparameter_table.PAPER else 0
    own = sum(method.trains_as is None for method in METHODS.values())
    assert len(rows) == own + of_the_paper_alone
    assert (hyperparameter_table.NOTE in shown.notes) == (setting != "digits")


def test_the_table_of_hyperparameters_tells_of_the_schedule_that_dlcpa_has_unasked(
    monkeypatch, tmp_path
):
    assert hyperparameter_table.NOTE_ON_SCHEDULE in hyperparameter_table.table("digits").notes
    values = {"lr": 0.01, "last_epochs": 2, "precision": "bf16"}
    entry = {"hyperparameters": values}
    chosen = {"digits": {m: entry for m, plan in METHODS.items() if plan.draws_views}}
    monkeypatch.setattr(hyperparameters, "CHOSEN", tmp_path / "chosen.json")
    hyperparameters.CHOSEN.write_text(json.dumps(chosen))
    shown = hyperparameter_table.table("digits")
    assert not shown.notes
    rows = {row.label: row.entries[1].text for row in shown.rows}
    assert rows["DLCPA + BYOL"] == "lr 0.01, last_epochs 2, precision bf16"
