import re
import shutil
import statistics
import subprocess

import numpy as np
import pytest
from synthetic_results import lower_triangle, make_result, write

from benchmarks.cells import Cell, result_path
from benchmarks.loading import load_results, provenance
from benchmarks.markup import (
    Entry,
    Row,
    Table,
    as_html,
    as_latex,
    as_markdown,
    as_text,
    escape_latex,
    escape_markdown,
)
from benchmarks.published import read_published
from benchmarks.run import run_cell
from benchmarks.summaries import marks, percent, summarize
from benchmarks.tables import comparison_table, experiment_table, scale_facts
from benchmarks.whole_files import save_json

NAN = float("nan")
LAB = "lab-cifar100-10"


def row(table, label):
    (found,) = [r for r in table.rows if r.label == label]
    return dict(zip(table.heads, found.entries, strict=True))


def at(setting, scenario, source, measure="ACC"):
    names = {"class_il": "Class-IL", "task_il": "Task-IL"}
    return (setting, f"{names[scenario]} {measure}", source)


CIFAR = "10-split CIFAR-100"


# Numbers ----------------------------------------------------------------------------------------


def test_mean_and_sample_deviation_over_seeds_by_hand():
    accuracies = [0.40, 0.43, 0.46]
    results = [
        make_result("dlcpa-mocov2", LAB, seed, class_il=accuracy)
        for seed, accuracy in enumerate(accuracies)
    ]
    entry = row(experiment_table("table4", "lab", results), "DLCPA + MoCoV2")
    # Mean 43, deviation sqrt((9 + 0 + 9) / 2) = 3 points.
    assert entry[at(CIFAR, "class_il", "ours")].text == "43.00 ± 3.00 (3)"
    assert entry[at(CIFAR, "task_il", "ours")].text == "75.00 ± 0.00 (3)"


def test_bwt_of_a_matrix_by_hand():
    # 10 tasks: the first 9 fall from 0.8 to 0.7 by the end, the last has 0.9.
    matrix = lower_triangle(LAB, learned=0.8, final=[0.7] * 9 + [0.9])
    table = experiment_table("table2", "lab", [make_result("ewc", LAB, task_il=matrix)])
    entries = row(table, "EWC")
    assert entries[at(CIFAR, "task_il", "ours")].text == "72.00 (1)"  # (9 * 0.7 + 0.9) / 10
    assert entries[at(CIFAR, "task_il", "ours", "BWT")].text == "-10.00 (1)"


def test_a_real_run_gives_the_numbers_of_its_matrix(tmp_path):
    cell = Cell("dlcpa-mocov2", "digits-cifar100-5", 1)
    save_json(run_cell(cell), result_path(cell, tmp_path))
    results, skipped = load_results(tmp_path)
    assert skipped == {}
    (entries,) = [r.entries for r in comparison_table(results).rows]
    for i, scenario in enumerate(("class_il", "task_il")):
        (first, _), (last, second) = results[0][scenario]["accuracy_matrix"]
        assert entries[i].text == percent((last + second) / 2)
        assert entries[2 + i].text == percent(last - first)


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(-1e-9, "0.00"), (-0.00004, "0.00"), (0.0, "0.00"), (-0.0001, "-0.01"), (1, "100.00")],
)
def test_percent_has_no_negative_zero(fraction, text):
    assert percent(fraction) == text


def test_what_is_undefined_does_not_count():
    assert summarize([None, None]) is None
    summary = summarize([0.1, None, 0.4, 0.4])
    assert summary.num == 3
    assert summary.mean == pytest.approx(0.3)
    assert summary.deviation == pytest.approx(statistics.stdev([0.1, 0.4, 0.4]))
    assert summarize([0.3]).deviation is None


def test_undefined_and_missing_cells_are_dashes():
    undefined = np.full((10, 10), NAN)
    results = [make_result("packnet", "lab-tiny-10", class_il=undefined, task_il=0.6)]
    table = experiment_table("table8", "lab", results)
    tiny = "10-split Tiny-ImageNet"
    packnet = row(table, "PackNet")
    assert packnet[at(tiny, "class_il", "ours")] == Entry("–")
    assert packnet[at(tiny, "task_il", "ours")].text == "60.00 (1)"
    assert row(table, "DLCPA + MoCoV2")[at(tiny, "task_il", "ours")] == Entry("–")
    assert row(table, "LPS")[at(tiny, "class_il", "paper")] == Entry("–")


# Ranking ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ([3, 1, 2], ["best", "", "second"]),
        ([2, 2, 1, 1, 0], ["best", "best", "second", "second", ""]),
        ([None, 5, None, 4], ["", "best", "", "second"]),
        ([5, None], ["", ""]),  # nothing to be best of
        ([-3, -1], ["second", "best"]),
        ([2, 2], ["best", "best"]),
        ([], []),
    ],
)
def test_marks(values, want):
    assert marks(values) == want
    assert marks(values, second=False) == [mark if mark == "best" else "" for mark in want]


def test_the_second_best_is_marked_where_the_paper_does():
    accuracies = {"dlcpa-a": 0.3, "dlcpa-b": 0.2, "dlcpa-mocov2": 0.4}
    results = [make_result(method, LAB, class_il=value) for method, value in accuracies.items()]
    for name, marked in (("table4", {"best"}), ("heads", {"best", "second"})):
        rows = experiment_table(name, "lab", results).rows
        assert {entry.mark for line in rows for entry in line.entries} - {""} == marked


def test_tables_with_packnet_tell_of_its_network():
    results = [make_result("packnet", "lab-tiny-10")]
    notes = " ".join(experiment_table("table8", "lab", results).notes)
    assert "batch norms and a head for each task" in notes


_NOT_RANKED = "* Not ranked: an upper bound in the paper, or keeps all samples of earlier tasks."


def test_upper_bounds_carry_a_star_and_are_not_ranked():
    accuracies = {"joint": 0.9, "cumulative": 0.8, "ewc": 0.3, "lwf": 0.4, "naive": 0.2}
    results = [make_result(method, LAB, class_il=value) for method, value in accuracies.items()]
    table = experiment_table("table3", "lab", results)
    place = at(CIFAR, "class_il", "ours")
    found = {
        label: row(table, label)[place].mark
        for label in ("Joint*", "Cumulative*", "EWC", "LwF", "Naive")
    }
    want = {"Joint*": "", "Cumulative*": "", "EWC": "second", "LwF": "best", "Naive": ""}
    assert found == want
    assert _NOT_RANKED in table.notes  # the paper has no Cumulative
    paper = at(CIFAR, "class_il", "paper")
    assert row(table, "Joint*")[paper] == Entry("70.31")
    assert row(table, "DLCPA + SimCLR")[paper] == Entry("40.82 ± 0.4", "best")
    assert row(table, "DLCPA + BYOL")[paper] == Entry("40.67 ± 1.1", "second")


def test_the_star_calls_nothing_an_upper_bound_of_the_paper_that_is_none_there():
    table = experiment_table("table1", "lab", [make_result("stl-me-finetuned", LAB)])
    assert "STL-me, classifiers finetuned*" in [line.label for line in table.rows]
    assert _NOT_RANKED in table.notes


def test_what_is_printed_equal_is_ranked_equal():
    results = [
        make_result("dlcpa-a", LAB, class_il=0.400001),
        make_result("dlcpa-byol", LAB, class_il=0.400002),
        make_result("dlcpa-simclr", LAB, class_il=0.3),
    ]
    table = experiment_table("heads", "lab", results)
    place = at(CIFAR, "class_il", None)[:2]
    titles = ("(a) without SSL", "DLCPA + BYOL", "DLCPA + SimCLR")
    assert [row(table, title)[place].mark for title in titles] == ["best", "best", "second"]


def test_who_keeps_samples_is_told_below():
    some = "Keep at most 500 samples of earlier tasks: GEM; DER++."
    whole = "Keep all samples of earlier tasks: STL-me, classifiers finetuned; Joint."
    assert {some, whole} <= set(experiment_table("grid", "lab", []).notes)
    results = [make_result(method, LAB, 0, class_il=0.5) for method in ("ewc", "der++", "gem")]
    assert comparison_table(results).notes == (some,)
    small = make_result("der++", LAB, 0, class_il=0.5, changes={"buffer_size": 100})
    fewer = "Keep at most 100 samples of earlier tasks: DER++."
    assert comparison_table([*results, small]).notes == (some, fewer)
    assert comparison_table(results[:1]).notes == ()


# Rows, columns, notes ---------------------------------------------------------------------------


def test_rows_are_ours_in_the_order_of_the_experiment_then_the_papers_own():
    labels = [r.label for r in experiment_table("table7", "paper", []).rows]
    assert labels == ["Naive", "EWC", "LwF", "DLCPA + MoCoV2", "DGR", "DI", "ABD", "PASS", "DCPOC"]
    parts = [r.label for r in experiment_table("table7", "paper", []).rows if r.begins_part]
    assert parts == ["DGR"]


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "table4", "table7", "table8"])
def test_all_published_numbers_are_shown(name):
    table = experiment_table(name, "paper", [])
    shown = [entry.text for r in table.rows for entry in r.entries if entry.text != "–"]
    assert sorted(shown) == sorted(p.text for p in read_published(name))


def test_changes_make_rows_of_their_own():
    results = [
        make_result("ewc", LAB, class_il=0.2),
        make_result("ewc", LAB, class_il=0.3, changes={"ssl": "mocov2"}),
        make_result("ewc", LAB, class_il=0.9, changes={"strength": 5.0}),  # of no row
    ]
    table = experiment_table("ssl-baselines", "lab", results)
    place = (CIFAR, "Class-IL ACC")
    assert row(table, "EWC")[place].text == "20.00 (1)"
    assert row(table, "EWC, ssl mocov2")[place].text == "30.00 (1)"
    assert "90.00 (1)" not in as_text(table)


def test_results_of_other_scales_are_left_out():
    results = [make_result("dlcpa-a", LAB, class_il=0.11), make_result("dlcpa-a", "cifar100-10")]
    assert "11.00" not in as_text(experiment_table("table4", "paper", results))
    assert "50.00 (1)" in as_text(experiment_table("table4", "paper", results))


def test_one_method_in_many_settings_has_a_row_a_setting_and_their_average():
    accuracies = {1: [0.3, 0.5], 2: [0.5, 0.5], 3: [0.6, 0.6]}
    results = [
        make_result("dlcpa-mocov2", f"lab-cifar100-10-order{order}", seed, class_il=value)
        for order, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    table = experiment_table("table10", "lab", results)
    assert table.corner == "setting"
    assert table.heads[:2] == (("Class-IL ACC", "ours"), ("Class-IL ACC", "paper"))
    orders = [f"10-split CIFAR-100, order {n}" for n in range(1, 6)]
    assert [r.label for r in table.rows] == [*orders, "average"]
    first, average = table.rows[0].entries, table.rows[-1].entries
    assert first[0].text == "40.00 ± 14.14 (2)"
    assert first[1].text == "40.29"
    # Means 40, 50 and 60 of the orders: mean 50, sample deviation 10.
    assert average[0].text == "50.00 ± 10.00 (3)"
    assert average[1].text == "38.89 ± 1.77"
    assert {entry.mark for r in table.rows for entry in r.entries} == {""}


def test_small_scales_say_what_they_are():
    (note,) = [n for n in experiment_table("table8", "lab", []).notes if n.startswith("Lab")]
    assert note == (
        "Lab scale: 50 images a class, ResNet-18 of width 16, 5 epochs; "
        "not comparable with the published numbers."
    )
    assert scale_facts("table9", "lab", []).startswith(
        "10-split CIFAR-100: 100 images a class, ResNet-34 of width 16, 10 epochs; 10-split Tiny"
    )
    assert not [n for n in experiment_table("table8", "paper", []).notes if " scale" in n]
    # The epochs are those of the results.
    results = [make_result("packnet", "lab-tiny-10", epochs=7)]
    assert scale_facts("table8", "lab", results).endswith("7 epochs")
    assert "5-split CIFAR-100: 2-split digits for" in scale_facts("table7", "digits", [])
    assert "ResNet-34 of width 2, 2 epochs" in scale_facts("table9", "digits", [])


@pytest.mark.parametrize(("name", "scale", "want"), [
    ("table8", "paper", []),
    ("table8", "lab", ["Hyperparameters: those of lab-cifar100-10."]),
    ("table4", "lab", ["Hyperparameters on 10-split Tiny-ImageNet: those of lab-cifar100-10."]),
    ("table2", "paper", [
        "Hyperparameters on 20-split CIFAR-100: those of cifar100-10.",
        "Hyperparameters on 25-split Tiny-ImageNet: those of tiny-10.",
    ]),
])  # fmt: skip
def test_a_table_tells_whose_hyperparameters_it_has(name, scale, want):
    notes = experiment_table(name, scale, []).notes
    assert [n for n in notes if n.startswith("Hyperparameters")] == want


# The table of a setting -------------------------------------------------------------------------


def test_comparison_with_one_seed_has_the_format_of_the_readme():
    falling = lower_triangle("digits", learned=1.0, final=[0, 0, 0, 0, 1])
    results = [
        make_result("dlcpa-mocov2", class_il=0.7012, task_il=0.99722, training_seconds=7.4),
        make_result("naive", class_il=falling, task_il=0.99444, training_seconds=2.6),
    ]
    assert as_markdown(comparison_table(results)) == (
        "| method | Class-IL ACC | Task-IL ACC | Class-IL BWT | Task-IL BWT | seconds |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: |\n"
        "| Naive | 20.00 | 99.44 | -100.00 | 0.00 | 3 |\n"
        "| DLCPA + MoCoV2 | 70.12 | 99.72 | 0.00 | 0.00 | 7 |"
    )


def test_comparison_with_seeds_has_deviations_and_their_number():
    results = [make_result("naive", seed=s, class_il=0.2 + 0.02 * s) for s in (0, 1)]
    results.append(make_result("ewc", class_il=np.full((5, 5), NAN)))
    table = comparison_table(results)
    assert table.heads[-1] == ("seeds",)
    naive, ewc = ([entry.text for entry in r.entries] for r in table.rows)
    assert naive == ["21.00 ± 1.41", "75.00 ± 0.00", "0.00 ± 0.00", "0.00 ± 0.00", "12 ± 0", "2"]
    assert ewc == ["–", "75.00", "–", "0.00", "12", "1"]


@pytest.mark.parametrize("settings", [(), ("digits", LAB)])
def test_comparison_refuses_several_settings(settings):
    with pytest.raises(ValueError, match="Expected `results` to be of one setting, got"):
        comparison_table([make_result("naive", setting) for setting in settings])


# Renderers --------------------------------------------------------------------------------------

SPECIAL = "a&b % $1 #_{x} ~^ \\ <i> [2] *|` ±"
TABLE = Table(
    heads=(("A", "ACC", "ours"), ("A", "ACC", "paper"), ("B", "ACC", "ours")),
    rows=(
        Row("one", (Entry("1.00 ± 0.10 (2)", "best"), Entry("2.0†"), Entry("–"))),
        Row(SPECIAL, (Entry("0.50", "second"), Entry(), Entry("3")), begins_part=True),
    ),
    title="Title",
    notes=("A note.",),
)


def test_text_is_aligned_and_marks_the_best():
    lines = as_text(TABLE).splitlines()
    width = len(lines[3])
    assert {len(line) for line in lines[:5]} == {width}
    assert lines[3].split() == ["one", "1.00", "±", "0.10", "(2)¹", "2.0†", "–"]
    assert "0.50²" in lines[4]
    assert lines[5:] == ["¹ best, ² second best.", "A note."]
    # A head ends where the last of its columns ends.
    assert lines[0].index("A") == lines[2].index("paper") + len("paper") - 1
    assert lines[1].count("ACC") == 2


def test_a_wide_head_widens_its_columns():
    heads = (("a very wide head", "x"), ("a very wide head", "y"))
    lines = as_text(Table(heads, (Row("r", (Entry("1"), Entry("2"))),))).splitlines()
    assert lines[0].endswith("a very wide head")
    assert len({len(line) for line in lines}) == 1


def test_the_legend_tells_of_the_marks_that_there_are():
    entries = (Entry("2", "best"), Entry("1")), (Entry("1"), Entry("2", "best"))
    table = Table((("A",), ("B",)), tuple(Row("r", row) for row in entries))
    assert as_text(table).splitlines()[-1] == "¹ best."
    assert as_markdown(table).splitlines()[-1] == "Bold: best of a column."
    assert r"\caption{Bold: best of a column.}" in as_latex(table)
    assert "<p class=note>Bold: best of a column.</p>" in as_html(table)
    plain = Table((("A",),), (Row("r", (Entry("1"),)),))
    assert "best" not in as_text(plain) + as_markdown(plain) + as_latex(plain) + as_html(plain)


def test_markdown_marks_and_escapes():
    lines = as_markdown(TABLE).splitlines()
    cells = [re.split(r"(?<!\\)\|", line) for line in lines[:4]]
    assert {len(line) for line in cells} == {6}
    assert cells[0][2].strip() == "A<br>ACC<br>ours"
    assert cells[2][2].strip() == "**1.00 ± 0.10 (2)**"
    assert cells[3][2].strip() == "<u>0.50</u>"
    assert "&lt;i&gt;" in cells[3][1]
    assert lines[-1] == "A note."
    assert "Bold: best of a column; underlined: second best." in lines


def test_latex_marks_spans_and_escapes():
    latex = as_latex(TABLE)
    assert r"\textbf{1.00 $\pm$ 0.10 (2)} & 2.0$^\dag$ & -- \\" in latex
    assert r"\underline{0.50}" in latex
    assert r" & \multicolumn{2}{c}{A} & \multicolumn{1}{c}{B} \\" in latex
    assert r"\cmidrule(lr){2-3}\cmidrule(lr){4-4}" in latex
    assert latex.count(r"\midrule") == 2  # below the heads, and above the second part
    assert r"\caption{Title. Bold: best of a column; underlined: second best. A note.}" in latex


def test_latex_escapes_every_special_letter():
    assert escape_latex(SPECIAL) == (
        r"a\&b \% \$1 \#\_\{x\} \textasciitilde{}\textasciicircum{} \textbackslash{} $<$i$>$ "
        r"{[}2] {*}|` $\pm$"
    )


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(tmp_path):
    head = "\\documentclass{article}\\usepackage{booktabs,graphicx}\\begin{document}\n"
    table = as_latex(experiment_table("table3", "lab", []))
    body = f"{head}{as_latex(TABLE)}\n{table}\n\\end{{document}}\n"
    (tmp_path / "t.tex").write_text(body, encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


def test_html_marks_spans_and_escapes():
    html = as_html(TABLE)
    assert "<td><b>1.00 ± 0.10 (2)</b></td>" in html
    assert "<td><u>0.50</u></td>" in html
    assert html.count('<th scope="colgroup" colspan="2">') == 2
    assert '<th scope="col" rowspan="3">method</th>' in html
    assert "&lt;i&gt;" in html
    assert "<i>" not in html
    assert '<tr class="part"><th scope="row">a&amp;b' in html


def test_markdown_escapes_what_would_be_formatted():
    assert escape_markdown("STL* a_b | [x] `c`") == r"STL\* a\_b \| \[x\] \`c\`"


# Loading ----------------------------------------------------------------------------------------


def test_whole_results_come_in_the_order_of_methods_changes_and_seeds(tmp_path):
    weights = [{"supervised_weight": w} for w in (100.0, 2.0)]
    results = [make_result("dlcpa-mocov2", changes=change) for change in weights]
    results += [make_result(m, seed=s) for m in ("dlcpa-mocov2", "naive") for s in (10, 2)]
    found, skipped = load_results(write(results, tmp_path))
    assert skipped == {}
    order = [(r["method"], r["changes"].get("supervised_weight"), r["seed"]) for r in found]
    assert order == [
        ("naive", None, 2),
        ("naive", None, 10),
        ("dlcpa-mocov2", None, 2),
        ("dlcpa-mocov2", None, 10),
        ("dlcpa-mocov2", 2.0, 0),
        ("dlcpa-mocov2", 100.0, 0),
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"format": 2, "meth', "to hold a whole result, got a file cut short"),
        ('{"format": 1}', "to have format 3, got 1"),
        ('{"format": 3}', "Expected a result with method, setting"),
        (make_result(method="ewk"), "Did you mean 'ewc'"),
        (make_result(judged_on="valid_stream"), "Expected a result on test_stream, got one on val"),
        (make_result(num_experiences=3), "Expected a result of 5 experiences, got 3"),
        (make_result("ewc", epochs=3), "to have epochs 15, got 3: the settings have changed since"),
        (make_result("ewc", views="none()"), "to have views ShiftsAndNoise(), got none()"),
        (make_result("ewc", setting_title="6-split digits"), "to have setting_title 5-split dig"),
        (make_result(seed=0), "Expected one file a run, got that of digits_naive_seed0.json again"),
    ],
)
def test_other_files_are_left_out_with_the_reason_and_stay(tmp_path, content, reason):
    write([make_result()], tmp_path)
    path = tmp_path / "other_seed0.json"
    if isinstance(content, str):
        path.write_text(content)
    else:
        save_json(content, path)
    before = path.read_bytes()
    results, skipped = load_results(tmp_path)
    assert [r["method"] for r in results] == ["naive"]
    assert list(skipped) == ["other_seed0.json"]
    assert reason in skipped["other_seed0.json"]
    assert path.read_bytes() == before


@pytest.mark.parametrize("other", [{"hyperparameters": {"lr": 1.0}}, {"batch_size": 64}])
def test_seeds_that_ran_otherwise_are_not_averaged(tmp_path, other):
    results = [make_result(seed=0), make_result(seed=1, **other), make_result("ewc")]
    found, skipped = load_results(write(results, tmp_path))
    assert [r["method"] for r in found] == ["ewc"]
    assert list(skipped) == ["digits_naive_seed0.json", "digits_naive_seed1.json"]
    assert all("to share hyperparameters and batch size" in r for r in skipped.values())


def test_provenance_names_all_commits_and_versions():
    one, two = make_result(seed=0), make_result(seed=1)
    two["provenance"] = {**two["provenance"], "commit": "def5678+", "versions": {"torch": "2.8.0"}}
    found = provenance([one, two])
    assert found["commit"] == "abc1234, def5678+"
    assert found["torch"] == "2.8.0, 2.9.0"
    assert found["python"] == "3.11.2"
    assert "gpu" not in found


def test_provenance_names_gpus_and_takes_a_version_that_was_lost():
    one, two = make_result(seed=0), make_result(seed=1)
    one["provenance"] = {**one["provenance"], "gpu": "NVIDIA H200"}
    two["provenance"] = {**two["provenance"], "versions": {"torch": None}}
    found = provenance([one, two])
    assert found["gpu"] == "NVIDIA H200"
    assert found["torch"] == "2.9.0, None"


def test_html_breaks_columns_of_words_into_lines_and_numbers_not():
    words = "lr 0.1, momentum 0.9, queue_size 65536, temperature 0.2"
    rows = (
        Row("x", (Entry("12.34 ± 0.56 (2)"), Entry(words))),
        Row("y", (Entry("1.00"), Entry("–"))),
    )
    page = as_html(Table((("a",), ("b",)), rows))
    assert "<td>12.34 ± 0.56 (2)</td>" in page
    assert f'<td class="words">{words}</td>' in page
    assert '<td class="words">–</td>' in page
    assert '<th scope="col">a</th><th scope="col" class="words">b</th>' in page
    assert "words" not in as_html(Table((("a",), ("b",)), ()))
