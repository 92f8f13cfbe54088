"""A cell of a grid that was killed goes on from its checkpoint, to the same numbers."""

import json
import sys

import pytest

from benchmarks import hyperparameters, run
from benchmarks.cells import Cell, checkpoints_path, read_result, result_path
from benchmarks.origin import digest_of
from benchmarks.training import Stopwatch

CELL = Cell("dlcpa-mocov2", "digits-cifar100-10", 3)
OWN = CELL.hyperparameters


class KilledError(Exception):
    """Stands for the kill."""


def killed_after(count):
    def on_experience(learned, resumed):
        if learned == count:
            raise KilledError

    return on_experience


def numbers_of(result):
    """All that does not depend on the clock and the machine."""
    return {name: result[name] for name in result if name not in ("training_seconds", "memory")}


def test_a_killed_cell_goes_on_to_the_same_numbers(tmp_path):
    whole = run.run_cell(CELL)
    for count in (1, 3):
        with pytest.raises(KilledError):
            run.run_cell(CELL, checkpoints=tmp_path, on_experience=killed_after(count))
    told = []
    result = run.run_cell(CELL, checkpoints=tmp_path, on_experience=lambda *n: told.append(n))
    assert numbers_of(result) == numbers_of(whole)
    assert told == [(3, 3), (4, 3), (5, 3)]
    assert result["memory"]["kept_bytes"] == whole["memory"]["kept_bytes"]


def test_what_was_chosen_anew_in_between_begins_anew(tmp_path, monkeypatch):
    chosen = tmp_path / "hyperparameters.json"
    monkeypatch.setattr(hyperparameters, "CHOSEN", chosen)

    def choose(lr):
        values = {**OWN, "lr": lr}
        chosen.write_text(json.dumps({"digits": {CELL.method: {"hyperparameters": values}}}))

    def killed_late(learned, resumed):
        choose(0.05)
        killed_after(2)(learned, resumed)

    choose(0.02)
    with pytest.raises(KilledError):
        run.run_cell(CELL, checkpoints=tmp_path, on_experience=killed_late)
    learned = []
    result = run.run_cell(
        CELL, checkpoints=tmp_path, on_experience=lambda count, _: learned.append(count)
    )
    assert learned == [1, 2, 3, 4, 5]
    assert result["hyperparameters"]["lr"] == 0.05
    choose(0.02)
    learned.clear()

    def choose_late(count, resumed):
        learned.append(count)
        choose(0.05)

    result = run.run_cell(CELL, checkpoints=tmp_path, on_experience=choose_late)
    assert learned == [2, 3, 4, 5]
    assert result["hyperparameters"]["lr"] == 0.02  # what it trained with


def test_the_seconds_are_those_of_all_lives():
    stopwatch = Stopwatch()
    stopwatch.before_training(None)
    stopwatch.load_state_dict({"seconds": 100.0})
    stopwatch.after_training(None)
    assert 100 <= stopwatch.seconds < 101


def run_main(monkeypatch, out, *words):
    line = ["run", "--method", CELL.method, "--setting", CELL.setting, "--seed", "3"]
    monkeypatch.setattr(sys, "argv", [*line, "--out", str(out), *words])
    run.main()


def test_checkpoints_lie_beside_the_result_until_it_is_written(tmp_path, monkeypatch):
    folder, seen = checkpoints_path(CELL, tmp_path), []
    save = run.save_json

    def look_and_save(content, path):
        seen.append(sorted(path.suffix for path in folder.rglob("checkpoint-*")))
        return save(content, path)

    monkeypatch.setattr(run, "save_json", look_and_save)
    run_main(monkeypatch, tmp_path)
    result_path(CELL, tmp_path).unlink()
    run_main(monkeypatch, tmp_path, "--no-resume")
    assert seen == [[".pt", ".pt"], []]
    assert not folder.exists()
    assert read_result(result_path(CELL, tmp_path))["method"] == CELL.method


def test_a_result_is_never_overwritten(tmp_path, monkeypatch, capsys):
    run_main(monkeypatch, tmp_path)
    path = result_path(CELL, tmp_path)
    before = path.read_bytes()
    run_main(monkeypatch, tmp_path)
    assert f"{path} is there already" in capsys.readouterr().out
    assert path.read_bytes() == before
    for other, message in (
        (before[:100], "to hold a whole result"),
        (before.replace(b"small CNN", b"large CNN"), "to have setting_title 5-split digits for"),
    ):
        path.write_bytes(other)
        with pytest.raises(SystemExit):
            run_main(monkeypatch, tmp_path)
        assert message in capsys.readouterr().err
        assert path.read_bytes() == other


def test_the_name_of_the_code_changes_with_any_line_of_it(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.py").write_text("x = 1")
    (tmp_path / "a" / "notes.md").write_text("one")
    before = digest_of(tmp_path)
    (tmp_path / "a" / "notes.md").write_text("two")
    assert digest_of(tmp_path) == before
    (tmp_path / "a" / "b.py").write_text("x = 2")
    assert digest_of(tmp_path) != before
    assert digest_of(*run.CODE) == digest_of(*run.CODE)
