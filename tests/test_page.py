import base64
import json
import re
import sys
from html.parser import HTMLParser

import pytest
from synthetic_results import make_result, write

from benchmarks import hyperparameters, report
from benchmarks.cells import Cell
from benchmarks.loading import superseded
from benchmarks.report import make_sections, write_report

LAB = "lab-cifar100-10"


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """A folder after its report, and what was printed."""
    folder = tmp_path_factory.mktemp("some") / "results"
    results = [make_result(m, LAB, seed) for m in ("dlcpa-a", "dlcpa-mocov2") for seed in (0, 2)]
    results[1]["provenance"] = {**results[1]["provenance"], "commit": "def<5678>+"}
    write([*results, make_result("ewc", "digits", class_il=0.2)], folder)
    (folder / "digits_naive_seed0.json").write_text('{"format": 2')
    return folder, run_report(folder)


def run_report(folder, *words):
    patch = pytest.MonkeyPatch()
    printed = []
    with patch.context() as context:
        context.setattr(sys, "argv", ["report", str(folder), *words])
        context.setattr(
            "builtins.print", lambda *parts, **_: printed.append(" ".join(map(str, parts)))
        )
        report.main()
    return "\n".join(printed)


def page_of(folder):
    return (folder / "report.html").read_text(encoding="utf-8")


class Tags(HTMLParser):
    """Checks that tags close in their order, and collects ids and links."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links = [], [], []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if "href" in found else []
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_loads_nothing_and_runs_nothing(reported):
    page = page_of(reported[0])
    assert not re.search(r"https?:|<script|<link|<iframe|@import|url\(| on\w+=", page)
    sources = re.findall(r'src="([^"]{0,30})', page)
    assert len(sources) == page.count("<img ") > 0
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "prefers-color-scheme: dark" in page


def test_the_page_is_whole_and_its_contents_lead_to_its_sections(reported):
    tags = Tags()
    tags.feed(page_of(reported[0]))
    assert tags.open == []
    assert [link.removeprefix("#") for link in tags.links] == tags.ids
    assert "table4-lab" in tags.ids
    assert f"setting-{LAB}" in tags.ids
    assert "setting-digits" in tags.ids


def test_the_pictures_of_the_page_are_the_figures(reported):
    folder = reported[0]
    inside = {
        base64.b64decode(data)
        for data in re.findall(r"data:image/png;base64,([^\"]+)", page_of(folder))
    }
    assert inside == {path.read_bytes() for path in (folder / "figures").rglob("*.png")}


def test_the_words_of_a_picture_say_to_what_it_belongs(reported):
    words = re.findall(r'<img alt="([^"]*)"', page_of(reported[0]))
    assert len(words) == len(set(words)) > 2
    assert any(text.startswith("digits: 5-split digits") for text in words)


def test_the_page_has_tables_commands_and_provenance(reported):
    page = page_of(reported[0])
    section = page.split('<section id="table4-lab">')[1].split("</section>")[0]
    assert "<td>50.00 ± 0.00 (2)</td>" in section or "<b>50.00 ± 0.00 (2)</b>" in section
    assert "python -m benchmarks.compare table4 --scale lab --seeds 0 2 --out results" in section
    assert "not comparable with the published numbers" in section
    assert "<dt>commit</dt><dd>abc1234, def&lt;5678&gt;+</dd>" in section
    digits = page.split('<section id="setting-digits">')[1].split("</section>")[0]
    assert (
        "python -m benchmarks.compare --methods ewc --settings digits --seeds 0 --out results"
        in digits
    )
    assert "<dt>commit</dt><dd>abc1234</dd>" in digits


def test_a_setting_has_a_command_for_each_change(tmp_path):
    changed = {"ssl": "mocov2", "lr": 0.5}
    results = [
        make_result("ewc"),
        make_result("naive"),
        make_result("naive", seed=1),
        make_result("naive", seed=2, changes=changed),
    ]
    (section,) = make_sections(results, tmp_path, setting="digits")
    assert section.command.splitlines() == [
        f"python -m benchmarks.compare --methods naive ewc --settings digits --seeds 0 1 {out}"
        if not changes
        else f"python -m benchmarks.compare --methods naive --settings digits {changes} {out}"
        for out in [f"--out {tmp_path.name}"]
        for changes in ("", "--set lr=0.5 --set ssl=mocov2 --seeds 2")
    ]


def test_files_left_out_are_named_with_the_reason(reported):
    folder, printed = reported
    assert "<dt>digits_naive_seed0.json</dt><dd>Expected" in page_of(folder)
    assert "skipped digits_naive_seed0.json: Expected" in printed
    assert "- `digits_naive_seed0.json`: Expected" in (folder / "report.md").read_text()
    assert (folder / "digits_naive_seed0.json").read_text() == '{"format": 2'


def test_markdown_shows_the_same_tables_and_pictures_that_are_there(reported):
    folder = reported[0]
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "## table4: Ablations, lab scale" in text
    assert "| EWC | 20.00 | 75.00 | 0.00 | 0.00 | 12 |" in text
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert pictures
    assert all((folder / name).is_file() for name in pictures)


def test_latex_holds_all_tables_and_pictures(reported):
    folder = reported[0]
    latex = (folder / "report.tex").read_text(encoding="utf-8")
    page = page_of(folder)
    assert latex.count(r"\begin{table}") == page.count("<table>")
    sections = re.findall(r"\\section\{(.+)\}", latex)
    assert len(sections) == page.count("<section ") - 1  # the last is the provenance
    pictures = re.findall(r"\\includegraphics\[[^]]+\]\{(.+)\}", latex)
    assert len(pictures) == page.count("<figure>")
    assert all((folder / name).is_file() for name in pictures)
    assert latex.startswith(r"\documentclass")


def test_printed_tables_and_paths(reported):
    folder, printed = reported
    assert re.search(r"^EWC +20\.00 +75\.00 +0\.00 +0\.00 +12$", printed, re.MULTILINE)
    paths = [line.strip() for line in printed.split("wrote\n")[1].splitlines()]
    assert len(paths) == len(set(paths)) == len(list((folder / "figures").rglob("*.png"))) + 3
    assert paths[-1] == str(folder / "report.html")


def test_latex_is_printed_where_asked_for(tmp_path):
    write([make_result("ewc", "digits")], tmp_path)
    assert r"\begin{tabular}{lrrrrr}" in run_report(tmp_path, "--latex")


def test_results_stay_as_they_were(tmp_path):
    result = make_result("ewc", "digits")
    write([result], tmp_path)
    run_report(tmp_path)
    (path,) = tmp_path.glob("*.json")
    assert json.loads(path.read_text()) == result


@pytest.mark.parametrize(
    ("options", "anchors"),
    [
        ({"experiment": "table4"}, ["table4-lab"]),
        ({"experiment": "table4", "scale": "lab"}, ["table4-lab"]),
        ({"setting": "digits"}, ["setting-digits"]),
        ({"setting": LAB, "experiment": "table8"}, None),
        ({"scale": "digits"}, ["setting-digits"]),
        ({"experiment": "table4", "scale": "paper"}, None),
        ({"experiment": "table9", "scale": "lab"}, None),
    ],
)
def test_what_is_asked_for_is_shown(tmp_path, options, anchors):
    results = [make_result("dlcpa-mocov2", LAB), make_result("dlcpa-mocov2", "digits")]
    if anchors is None:
        command = r"benchmarks\."
        if {"experiment", "scale"} <= options.keys():
            command = rf"benchmarks\.compare {options['experiment']} --scale {options['scale']}`"
        with pytest.raises(
            ValueError, match=f"Expected results of .* got none: run `python -m {command}"
        ):
            make_sections(results, tmp_path, **options)
    else:
        assert [s.anchor for s in make_sections(results, tmp_path, **options)] == anchors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experiment": "tabel4"}, "Did you mean 'table4'"),
        ({"setting": "digit"}, "Did you mean 'digits'"),
        ({"scale": "labs"}, "Did you mean 'lab'"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        make_sections([make_result()], tmp_path, **options)


def test_a_report_of_nothing_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"Expected results in .*got none: run `python -m benchmarks.run"
    ):
        make_sections([], tmp_path)


def test_figures_of_the_paper_come_with_the_numbers_behind_them(tmp_path):
    results = [
        make_result("dlcpa-mocov2", setting, changes={"supervised_weight": weight})
        for setting in (LAB, "lab-tiny-10")
        for weight in (0.0, 10.0)
    ]
    (section,) = make_sections(results, tmp_path, experiment="lambda")
    assert [len(table.rows) for table in section.tables] == [2, 2]
    assert section.tables[0].rows[1].label == "DLCPA + MoCoV2, supervised_weight 10"
    headings = [heading for heading, _ in section.headed_tables]
    assert "CIFAR-100" in headings[0]
    assert "Tiny-ImageNet" in headings[1]
    drawn = section.drawn(tmp_path)
    assert [p.path.name for p in drawn.pictures] == ["lambda_lab_1.png"]


@pytest.mark.parametrize(("name", "setting"), [("over-time", "lab-tiny-10"), ("confusion", LAB)])
def test_a_figure_says_which_panel_of_the_paper_it_lacks(tmp_path, name, setting):
    sections = make_sections([make_result("der++", setting)], tmp_path, experiment=name)
    for path in write_report(sections, {}, tmp_path)[-2:]:
        assert "has GPM as well, which is not among Avalanche" in path.read_text(), path.name


def ran_with(cell, **others):
    """A result of a cell with the hyperparameters of today, but for others."""
    values = {**cell.hyperparameters, **others}
    changes = dict(cell.changes)
    words = {"hyperparameters": values, "batch_size": cell.batch_size, "changes": changes}
    return make_result(cell.method, cell.setting, cell.seed, **words)


def test_results_of_superseded_hyperparameters_are_told_below_the_tables(tmp_path):
    strength = Cell("ewc", "digits").hyperparameters["strength"]
    old = [ran_with(Cell("ewc", "digits", seed), strength=0.125) for seed in (0, 2)]
    kept = [
        ran_with(Cell("naive", "digits")),
        ran_with(Cell("naive", "digits", 0, (("lr", 0.5),))),  # on purpose
        ran_with(Cell("dlcpa-mocov2-gaussian", "digits")),  # trains as another
        ran_with(Cell("linear-probe", LAB)),
    ]
    note = (
        "Superseded: EWC in digits, seed 0, 2, ran with strength 0.125 where "
        f"strength {strength} is chosen now."
    )
    assert superseded([*kept, *old]) == [note]
    sections = make_sections([*kept[:3], *old], tmp_path, setting="digits")
    paths = write_report(sections, {}, tmp_path)[-3:]
    assert all(note in path.read_text() for path in paths)
    assert [path.suffix for path in paths] == [".md", ".tex", ".html"]
    write([*kept[:1], *old], tmp_path)
    assert f"\n{note}\n" in run_report(tmp_path)


def test_analyses_that_no_figure_of_the_paper_is_of_have_a_section(tmp_path):
    grid = [[1.0, 2.0], [3.0, 4.0]]
    surface = {
        "losses": {"task 1": grid},
        "x": [0, 1],
        "y": [0, 1],
        "points": {"start": [0.5, 1.0]},
    }
    results = [
        make_result("loss-surface", LAB, **surface),
        make_result("loss-surface", LAB, changes={"ssl": "byol"}, **surface),
        make_result("linear-probe", "lab-tiny-10", matrix=[[0.1]] * 3, row_labels=["a", "b", "c"]),
    ]
    sections = make_sections(results, tmp_path)
    own = [section for section in sections if section.results]
    titles = [section.title.partition(":")[0] for section in own]
    assert titles == [
        "loss-surface",
        "Linear probe of STL and STL-me",
        "Loss over the plane of two extractors, ssl byol",
    ]
    assert [section.results for section in own] == [[results[i]] for i in (0, 2, 1)]
    assert own[2].command.endswith(
        f"loss-surface --settings {LAB} --set ssl=byol --seeds 0 --out {tmp_path.name}"
    )
    paths = write_report(sections, {}, tmp_path)
    assert {"lab-tiny-10_linear-probe.png", "lab-cifar100-10_loss-surface_ssl=byol.png"} <= {
        path.name for path in paths
    }
    (one,) = make_sections(results, tmp_path, setting="lab-tiny-10")
    assert one.results == results[2:]


def test_what_is_not_chosen_any_more_is_superseded(monkeypatch, tmp_path):
    result = ran_with(Cell("ewc", "digits"))
    monkeypatch.setattr(hyperparameters, "CHOSEN", tmp_path / "nowhere.json")
    (note,) = superseded([result])
    assert note.endswith(" where nothing is chosen now.")
