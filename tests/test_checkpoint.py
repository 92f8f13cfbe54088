"""Checkpoint files: the last two, whole or not at all, and nothing in them that could run."""

import pickle

import pytest
import torch
from helpers import Bomb, small_disk

from avalanche_dlcpa import checkpoint
from avalanche_dlcpa.checkpoint import CheckpointFolder


def folder_with(tmp_path, *numbers):
    folder = CheckpointFolder(tmp_path / "run")
    for number in numbers:
        folder.write(state_of(number))
    return folder


def state_of(number):
    return {"number": number, "weights": torch.full((2000,), float(number))}


def files(folder):
    return sorted(path.name for path in folder.path.iterdir())


def newest(folder):
    return max(folder.path.iterdir())


def read_number(folder):
    state = CheckpointFolder(folder.path).read()  # as a new process does
    assert torch.equal(state["weights"], state_of(state["number"])["weights"])
    return state["number"]


def test_the_newest_is_read_and_the_last_two_are_kept(tmp_path):
    folder = folder_with(tmp_path, 1, 2, 3, 4)
    assert [name[:17] for name in files(folder)] == ["checkpoint-000003", "checkpoint-000004"]
    assert read_number(folder) == 4
    state = torch.load(newest(folder), weights_only=True)  # an ordinary file of torch
    assert state.keys() == {"format", "number", "weights"}


def test_a_folder_without_checkpoints_has_none(tmp_path):
    assert CheckpointFolder(tmp_path / "none").read() is None
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    assert CheckpointFolder(tmp_path).read() is None
    with pytest.raises(ValueError, match="Expected a folder for checkpoints, got the file"):
        CheckpointFolder(tmp_path / "notes.txt")


def cut(data):
    return data[: len(data) // 2]


def flip_at(share):
    def flip(data):
        position = int(share * (len(data) - 1))
        return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]

    return flip


@pytest.mark.parametrize(
    "damage", [cut, lambda data: b"", *map(flip_at, (0, 0.1, 0.3, 0.5, 0.9, 1))]
)
def test_a_damaged_file_is_refused_for_the_one_before_and_left_alone(tmp_path, damage):
    folder = folder_with(tmp_path, 1, 2)
    damaged = newest(folder)
    damaged.write_bytes(damage(damaged.read_bytes()))
    content = damaged.read_bytes()
    again = CheckpointFolder(folder.path)
    with pytest.warns(UserWarning, match="refused. checkpoint-000002.*It was cut short or altered"):
        assert again.read()["number"] == 1
    for number in (3, 4, 5):
        again.write(state_of(number))
    assert damaged.read_bytes() == content  # evidence is nobody's to remove
    assert read_number(folder) == 5
    assert len(files(folder)) == 3


def test_without_a_sound_one_nothing_starts_anew_by_itself(tmp_path):
    folder = folder_with(tmp_path, 1, 2)
    for path in folder.path.iterdir():
        path.write_bytes(cut(path.read_bytes()))
    before = {path: path.read_bytes() for path in folder.path.iterdir()}
    with pytest.raises(ValueError, match=r"got 2 that cannot be used. checkpoint-000002.*000001"):
        CheckpointFolder(folder.path).read()
    assert {path: path.read_bytes() for path in folder.path.iterdir()} == before


def forge(folder, write):
    """A file of a stranger's with a right checksum in its name."""
    draft = folder.path / "draft"
    write(draft)
    draft.replace(folder.path / f"checkpoint-000009-{checkpoint._checksum(draft)}.pt")


@pytest.mark.parametrize(
    "dump", [torch.save, lambda obj, path: path.write_bytes(pickle.dumps(obj))]
)
def test_loading_runs_no_code_of_the_file(tmp_path, dump):
    folder = folder_with(tmp_path, 1)
    forge(folder, lambda path: dump({"format": 2, "bomb": Bomb(tmp_path / "ran")}, path))
    with pytest.warns(UserWarning, match="no file of plain data, and was not loaded"):
        assert read_number(folder) == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"\x80\x02.", b"", b"\x80\x02}q\x00K\x00b."])
def test_a_crafted_file_is_refused_however_the_reader_stumbles(tmp_path, content):
    folder = folder_with(tmp_path, 1)
    forge(folder, lambda path: path.write_bytes(content))
    with pytest.warns(UserWarning, match="no file of plain data, and was not loaded"):
        assert read_number(folder) == 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"format": 99}, "It has format 99, and this version of the package reads 3"),
        ([1, 2], "It has format None"),
    ],
)
def test_another_format_is_refused(tmp_path, content, problem):
    folder = folder_with(tmp_path, 1)
    forge(folder, lambda path: torch.save(content, path))
    with pytest.warns(UserWarning, match=problem):
        assert read_number(folder) == 1


def test_a_check_of_the_caller_refuses_too(tmp_path):
    folder = folder_with(tmp_path, 1, 2)

    def check(state):
        if state["number"] == 2:
            raise ValueError("It is of another run.")

    with pytest.warns(UserWarning, match="Going on from checkpoint-000001.*It is of another run"):
        assert CheckpointFolder(folder.path).read(check)["number"] == 1


def test_a_full_disk_warns_and_leaves_those_before(tmp_path):
    folder = folder_with(tmp_path, 1, 2)
    before = files(folder)
    message = "No checkpoint could be written to .* training goes on"
    with pytest.warns(UserWarning, match=message), small_disk():
        assert folder.write(state_of(3)) is None
    assert files(folder) == before  # and no draft is left
    assert read_number(folder) == 2


def test_what_a_killed_process_left_half_written_is_cleared(tmp_path):
    folder = folder_with(tmp_path, 1)
    (folder.path / ".checkpoint-123.tmp").write_bytes(b"half")
    assert read_number(folder) == 1
    assert len(files(folder)) == 1
