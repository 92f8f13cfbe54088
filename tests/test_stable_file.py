"""The file of a stable learner: written whole or not at all, checked before use, never run."""

import dataclasses
import json
import pickle

import pytest
import safetensors.torch
import torch
from helpers import Bomb, small_disk
from safetensors import safe_open

from avalanche_dlcpa.stable_file import StableInfo, checksum_of_tensors, read_stable, write_stable

INFO = StableInfo(
    labels=(0, 1, 7),
    names=("zero", "ein's", "septé"),
    task_labels=(0, 0, 0),
    classifiers=(1, 0, 1),
    kind="linear",
    num_averaged=2,
    architecture="SmallCNN",
    head="fc",
    image_shape=(1, 2),
    normalization=((0.1,), (0.3,)),
    probe=(0.1, -3.0, 1e-7),
)


def tensors(seed=0, size=40):
    generator = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(size, 3, generator=generator),
        "steps": torch.tensor(3),
        "half": torch.randn(5, generator=generator).bfloat16(),
        "double": torch.randn(2, generator=generator).double(),
        "mask": torch.tensor([True, False]),
        "none": torch.empty(0, 4),
    }


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "stable.safetensors"
    write_stable(path, tensors(), INFO)
    return path


def forge(path, state, **changes):
    """A file of a stranger's, with a right checksum; None leaves a line out."""
    metadata = {name: json.dumps(value) for name, value in dataclasses.asdict(INFO).items()}
    metadata |= {"producer": "avalanche-dlcpa", "format_version": "1", **changes}
    metadata = {name: text for name, text in metadata.items() if text is not None}
    metadata["checksum"] = checksum_of_tensors(state, metadata)
    path.write_bytes(safetensors.torch.save(state, metadata))


def test_what_is_written_is_read(path):
    found, info = read_stable(path)
    assert_same(found, tensors())
    assert info == INFO
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no draft is left


def test_it_is_an_ordinary_safetensors_file(path):
    assert_same(safetensors.torch.load_file(path), tensors())
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert json.loads(metadata["names"]) == list(INFO.names)
    assert metadata["num_averaged"] == "2"
    assert metadata["format_version"] == "1"


def test_a_folder_is_made_and_an_old_file_replaced(tmp_path):
    path = tmp_path / "new" / "folder" / "x.safetensors"
    for seed in (1, 2):
        write_stable(path, tensors(seed), INFO)
        assert_same(read_stable(path)[0], tensors(seed))


def test_columns_of_a_task():
    assert INFO.tasks == (1, 0, 1)  # without task labels: the classifiers
    assert INFO.columns(1) == [0, 2]
    with pytest.raises(ValueError, match=r"Expected `task` to be one of \[0, 1\], got 2"):
        INFO.columns(2)
    labelled = dataclasses.replace(INFO, task_labels=(5, 0, 0))
    assert labelled.tasks == (5, 0, 0)
    assert labelled.columns(5) == [0]


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.99])
def test_a_truncated_file_is_refused(path, share):
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(
        ValueError, match=r"got no whole safetensors file .* it was cut short.*Copy"
    ):
        read_stable(path)


def test_no_flipped_bit_goes_unseen(path):
    data = path.read_bytes()
    problems = set()
    for position in range(0, len(data), 3):
        path.write_bytes(
            data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :]
        )
        try:
            found, info = read_stable(path)
        except ValueError as error:
            problems.add(str(error).partition("got ")[2][:12])
            continue
        assert_same(found, tensors())  # of the header's padding, or another way to write a number
        assert info == INFO
    assert {"a file that ", "no whole saf"} <= problems


def test_flipped_bits_of_tensors_are_named(path):
    data = path.read_bytes()
    start = len(data) - sum(t.numel() * t.element_size() for t in tensors().values())
    for position in range(start, len(data), 7):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x80]) + data[position + 1 :])
        with pytest.raises(ValueError, match="got a file that was altered: its checksum is not"):
            read_stable(path)


@pytest.mark.parametrize(
    "dump", [torch.save, lambda obj, path: path.write_bytes(pickle.dumps(obj))]
)
def test_reading_runs_no_code_of_the_file(path, tmp_path, dump):
    dump({"bomb": Bomb(tmp_path / "ran")}, path)
    with pytest.raises(ValueError, match=r"got no whole safetensors file .* which was not loaded"):
        read_stable(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_safetensors_file_of_another_program_is_refused(path, metadata):
    path.write_bytes(safetensors.torch.save(tensors(), metadata))
    with pytest.raises(ValueError, match="got a safetensors file that was written by something el"):
        read_stable(path)


def test_another_format_is_refused_with_the_way_out(path):
    forge(path, tensors(), format_version="2")
    message = "to have format 1, got format 2: read it with the version .* that wrote it, or export"
    with pytest.raises(ValueError, match=message):
        read_stable(path)


def test_an_altered_number_in_the_description_is_refused(path):
    data = path.read_bytes()
    assert data.count(b'"num_averaged":"2"') == 1
    path.write_bytes(data.replace(b'"num_averaged":"2"', b'"num_averaged":"9"'))
    with pytest.raises(ValueError, match="got a file that was altered"):
        read_stable(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": "[0, 1]"},
        {"labels": "[]"},
        {"labels": "[0, 7, 1]"},
        {"labels": "[0, 0, 1]"},
        {"labels": "[-1, 0, 1]"},
        {"labels": "[0, 1, 9999999999]"},
        {"labels": "[0, true, 7]"},
        {"labels": "7"},
        {"labels": "[" * 100_000},
        {"labels": None},
        {"task_labels": "[0, 0]"},
        {"classifiers": "[0, 0, 2]"},
        {"classifiers": "[1, 1, 2147483647]"},
        {"kind": '"other"'},
        {"names": '["a", "b"]'},
        {"names": '["a", "b", 3]'},
        {"num_averaged": "0"},
        {"num_averaged": "1.5"},
        {"num_averaged": "null"},
        {"architecture": "3"},
        {"head": '{"x": 1}'},
        {"image_shape": "[1.5, 2]"},
        {"image_shape": "3"},
        {"probe": "null"},
        {"probe": "[0.0]"},
        {"normalization": "[[0.1], [0.2, 0.3]]"},
        {"normalization": "[[0.1]]"},
        {"normalization": "4"},
    ],
    ids=str,
)
def test_a_description_that_makes_no_sense_is_refused(path, changes):
    forge(path, tensors(), **changes)
    with pytest.raises(ValueError, match="got a description that makes no sense"):
        read_stable(path)


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors"):
        read_stable(tmp_path / "none.safetensors")


def test_a_full_disk_leaves_the_file_before(path):
    before = path.read_bytes()
    with pytest.raises(OSError, match=r"[Ff]ile too large"), small_disk():
        write_stable(path, tensors(size=5000), INFO)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_crash_before_the_rename_leaves_the_file_before(path, monkeypatch):
    before = path.read_bytes()

    def fail(*args):
        raise OSError("no rename")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(OSError, match="no rename"):
        write_stable(path, tensors(1), INFO)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]
