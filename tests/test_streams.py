import random
from collections import Counter
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest
import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.benchmarks.classic import SplitCIFAR100, SplitMNIST, SplitTinyImageNet
from avalanche.benchmarks.datasets import TinyImagenet
from avalanche.benchmarks.datasets import dataset_utils as avalanche_folders
from avalanche.models import SimpleMLP
from avalanche.training import Naive
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader
from torchvision.datasets import CIFAR100, MNIST

from avalanche_dlcpa import streams
from avalanche_dlcpa.streams import split_cifar100, split_digits, split_mnist, split_tiny_imagenet

DIGITS = list("0123456789")
EVERY_OPTION = {
    "class_order_seed": 3,
    "validation_fraction": 0.1,
    "train_images_per_class": 20,
    "task_labels": True,
    "augment": False,
}


def class_counts(stream):
    labels = np.concatenate([np.asarray(experience.dataset.targets) for experience in stream])
    return np.bincount(labels).tolist()


def classes(stream):
    # sorted: Avalanche's own order within an experience is that of a Python set
    return [sorted(experience.classes_in_this_experience) for experience in stream]


def digit_samples(stream):
    """Each image of a stream without transforms, as bytes, with the label that it carries."""
    return [
        (sample[0].numpy().tobytes(), sample[1])
        for experience in stream
        for sample in experience.dataset
    ]


def all_digits():
    images, labels = load_digits(return_X_y=True)
    pixels = (images / 16).astype(np.float32)
    return [(image.tobytes(), int(label)) for image, label in zip(pixels, labels, strict=True)]


def global_random_states():
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, keys.tolist(), rest, torch.get_rng_state().tolist()


class FakeCIFAR100:
    """Random images with torchvision's attributes, five to a class, the labels in turn."""

    classes = tuple(f"class {label}" for label in range(100))

    def __init__(self, seed):
        self.data = np.random.default_rng(seed).integers(0, 256, (500, 32, 32, 3), dtype=np.uint8)
        self.targets = list(range(100)) * 5

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return Image.fromarray(self.data[index]), self.targets[index]


@pytest.fixture
def fake_cifar100(monkeypatch):
    train, test = FakeCIFAR100(1), FakeCIFAR100(2)
    monkeypatch.setattr(streams, "get_cifar100_dataset", lambda root: (train, test))
    return SimpleNamespace(train=train, test=test)


def normalised(images):
    """What evaluation sees of uint8 images (N, 32, 32, 3), from Avalanche's published constants."""
    mean, deviation = np.array([0.5071, 0.4865, 0.4409]), np.array([0.2673, 0.2564, 0.2762])
    return ((np.asarray(images) / 255 - mean) / deviation).transpose(0, 3, 1, 2)


def batch(dataset, indices):
    return torch.stack([dataset[index][0] for index in indices]).numpy()


# --- digits: the stream without files or transforms ---


def test_digits_are_all_of_scikit_learns_images_with_their_labels():
    stream = split_digits()
    found = digit_samples(stream.train_stream) + digit_samples(stream.test_stream)
    assert sorted(found) == sorted(all_digits())
    image = stream.train_stream[0].dataset[0][0]
    assert (image.shape, image.dtype) == ((1, 8, 8), torch.float32)
    assert torch.stack([s[0] for s in stream.test_stream[0].dataset]).aminmax() == (0.0, 1.0)


def test_digits_test_set_is_a_fifth_of_each_class():
    stream = split_digits()
    totals = np.bincount(load_digits().target)
    assert np.abs(np.array(class_counts(stream.test_stream)) - totals / 5).max() < 1
    assert sum(class_counts(stream.test_stream)) == 360


def test_class_names_are_a_list_indexed_by_label():
    assert split_digits(class_order_seed=1).class_names == DIGITS


def test_without_validation_there_is_no_valid_stream():
    assert set(split_digits().streams) == {"train", "test"}


@pytest.mark.parametrize("num_experiences", [1, 2, 5, 10])
def test_every_divisor_splits_the_classes_equally(num_experiences):
    stream = split_digits(num_experiences, validation_fraction=0.1)
    expected = np.arange(10).reshape(num_experiences, -1).tolist()
    for part in (stream.train_stream, stream.valid_stream, stream.test_stream):
        assert classes(part) == expected
        for experience, labels in zip(part, expected, strict=True):
            assert {label for _, label, _ in experience.dataset} == set(labels)


@pytest.mark.parametrize("num_experiences", [0, -5, 3, 11])
def test_other_numbers_of_experiences_are_refused(num_experiences):
    with pytest.raises(ValueError, match=f"got {num_experiences}; choose one of 1, 2, 5, 10\\."):
        split_digits(num_experiences)


@pytest.mark.parametrize("num_images", [0, -1, 140])
def test_impossible_numbers_of_training_images_are_refused(num_images):
    with pytest.raises(
        ValueError, match=f"`train_images_per_class` .* to 139, .* got {num_images};"
    ):
        split_digits(train_images_per_class=num_images)


@pytest.mark.parametrize("fraction", [-0.1, 0.09, 0.91, 1.0, 45, float("nan")])
def test_validation_fractions_that_leave_a_class_without_an_image_are_refused(fraction):
    with pytest.raises(ValueError, match=f"`validation_fraction` .* has 10\\), got {fraction};"):
        split_digits(train_images_per_class=10, validation_fraction=fraction)


@pytest.mark.parametrize("fraction", [0.1, 0.9])
def test_validation_fractions_at_the_limits_leave_one_image(fraction):
    stream = split_digits(train_images_per_class=10, validation_fraction=fraction)
    assert class_counts(stream.valid_stream) == [round(10 * fraction)] * 10
    assert class_counts(stream.train_stream) == [round(10 - 10 * fraction)] * 10


def test_unknown_options_are_refused():
    with pytest.raises(TypeError, match="shuffle"):
        split_digits(shuffle=True)


# --- class order ---


@pytest.mark.parametrize("seed", [0, 1, 17])
def test_drawn_class_order_is_the_one_of_avalanches_seed(seed):
    digits, _, _ = streams._digits(None)
    avalanches = nc_benchmark(digits, digits, 5, False, seed=seed)
    ours = split_digits(class_order_seed=seed)
    assert ours.classes_order == avalanches.classes_order
    assert classes(ours.train_stream) == classes(avalanches.train_stream)
    assert classes(ours.test_stream) == classes(avalanches.test_stream)


def test_class_orders_repeat_with_the_seed_and_differ_between_seeds():
    orders = [tuple(split_digits(class_order_seed=seed).classes_order) for seed in (4, 4, 5, 6)]
    assert orders[0] == orders[1]
    assert len(set(orders)) == 3
    assert all(sorted(order) == list(range(10)) for order in orders)


def test_labels_stay_the_data_sets_own_in_a_drawn_order():
    stream = split_digits(class_order_seed=3)
    assert stream.classes_order != list(range(10))
    assert set(digit_samples(stream.train_stream)) <= set(all_digits())
    assert set(digit_samples(stream.test_stream)) <= set(all_digits())


# --- randomness ---


def test_global_random_states_are_not_moved():
    before = global_random_states()
    split_digits(**EVERY_OPTION)
    assert global_random_states() == before


def test_global_random_states_are_not_read():
    built = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        stream = split_digits(**EVERY_OPTION)
        parts = (stream.train_stream, stream.valid_stream, stream.test_stream)
        built.append([digit_samples(part) for part in parts])
    assert built[0] == built[1]


# --- choice of training and validation images ---


def test_validation_and_training_images_are_disjoint_and_together_the_original():
    original = split_digits()
    stream = split_digits(validation_fraction=0.1)
    train, valid = digit_samples(stream.train_stream), digit_samples(stream.valid_stream)
    assert not set(train) & set(valid)
    assert sorted(train + valid) == sorted(digit_samples(original.train_stream))
    assert train == [sample for sample in digit_samples(original.train_stream) if sample in train]
    assert digit_samples(stream.test_stream) == digit_samples(original.test_stream)


def test_validation_takes_its_share_of_each_class():
    totals = np.array(class_counts(split_digits().train_stream))
    valid = np.array(class_counts(split_digits(validation_fraction=0.25).valid_stream))
    assert np.abs(valid - totals / 4).max() < 1


def test_validation_images_are_drawn_and_not_the_first_or_last():
    stream = split_digits(1, train_images_per_class=100, validation_fraction=0.1)
    original = [image for image, label in digit_samples(split_digits().train_stream) if label == 0]
    held_out = {image for image, label in digit_samples(stream.valid_stream) if label == 0}
    positions = [i for i, image in enumerate(original) if image in held_out]
    assert len(positions) == 10
    assert min(positions) < 50 < max(positions)
    assert positions != list(range(positions[0], positions[0] + 10))


def test_validation_images_depend_neither_on_class_order_nor_on_the_number_of_experiences():
    reference = split_digits(validation_fraction=0.1)
    for num_experiences, seed in ((5, 3), (10, None), (2, 8)):
        other = split_digits(num_experiences, class_order_seed=seed, validation_fraction=0.1)
        ours, theirs = digit_samples(other.valid_stream), digit_samples(reference.valid_stream)
        assert sorted(ours) == sorted(theirs)


def test_train_images_per_class_takes_the_first_of_the_data_sets_order():
    digits, _, _ = streams._digits(None)
    first = Counter()
    expected = []
    for image, label in digits:
        first[int(label)] += 1
        if first[int(label)] <= 7:
            expected.append((image.numpy().tobytes(), int(label)))
    stream = split_digits(train_images_per_class=7)
    assert sorted(digit_samples(stream.train_stream)) == sorted(expected)
    assert class_counts(stream.test_stream) == class_counts(split_digits().test_stream)


def test_train_images_per_class_comes_before_validation():
    first = split_digits(train_images_per_class=20)
    stream = split_digits(train_images_per_class=20, validation_fraction=0.1)
    found = digit_samples(stream.train_stream) + digit_samples(stream.valid_stream)
    assert sorted(found) == sorted(digit_samples(first.train_stream))
    assert class_counts(stream.valid_stream) == [2] * 10


# --- task labels and Avalanche's own machinery ---


@pytest.mark.parametrize(("task_labels", "expected"), [(False, [0] * 5), (True, [0, 1, 2, 3, 4])])
def test_task_labels_of_experiences_and_samples(task_labels, expected):
    stream = split_digits(task_labels=task_labels, validation_fraction=0.1)
    for part in (stream.train_stream, stream.valid_stream, stream.test_stream):
        assert [experience.task_labels for experience in part] == [[label] for label in expected]
        assert [experience.dataset[0][2] for experience in part] == expected


def test_valid_stream_is_a_full_stream_of_the_scenario():
    stream = split_digits(validation_fraction=0.1)
    assert type(stream).__name__ == "NCScenario"
    assert stream.n_classes_per_exp == [2] * 5
    assert set(stream.streams) == {"train", "test", "valid"}
    for name in ("train", "valid", "test"):
        part = stream.streams[name]
        assert part is getattr(stream, f"{name}_stream")
        assert part[1].origin_stream.name == name
        assert part[1].benchmark is stream
        assert part[1].current_experience == 1
        assert sorted(part[1].classes_seen_so_far) == [0, 1, 2, 3]


def test_a_strategy_trains_and_evaluates_on_the_streams():
    stream = split_digits(2, validation_fraction=0.1)
    model = SimpleMLP(num_classes=10, input_size=64, hidden_size=32)
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=torch.nn.CrossEntropyLoss(),
        train_mb_size=16,
        train_epochs=3,
    )
    strategy.train(stream.train_stream[0])
    for name in ("valid", "test"):
        key = f"Top1_Acc_Exp/eval_phase/{name}_stream/Task000/Exp000"
        assert strategy.eval(stream.streams[name])[key] > 0.8


# --- transforms, on random images in CIFAR-100's format ---


def of_classes(labels):
    """Indices of a FakeCIFAR100 in the order of an experience: class by class."""
    return [index for label in set(labels) for index in range(label, 500, 100)]


def test_evaluation_images_are_normalised_only(fake_cifar100):
    dataset = split_cifar100().test_stream[2].dataset
    expected = normalised(fake_cifar100.test.data[of_classes(range(20, 30))])
    np.testing.assert_allclose(batch(dataset, range(50)), expected, atol=1e-5)


def test_training_images_without_augmentation_are_normalised_only(fake_cifar100):
    dataset = split_cifar100(augment=False).train_stream[2].dataset
    expected = normalised(fake_cifar100.train.data[of_classes(range(20, 30))])
    np.testing.assert_allclose(batch(dataset, range(50)), expected, atol=1e-5)
    np.testing.assert_allclose(batch(dataset.train(), range(50)), expected, atol=1e-5)


def test_training_images_are_augmented_but_for_their_evaluation(fake_cifar100):
    dataset = split_cifar100().train_stream[2].dataset
    expected = normalised(fake_cifar100.train.data[of_classes(range(20, 30))])
    assert not np.array_equal(batch(dataset, range(50)), batch(dataset, range(50)))
    np.testing.assert_allclose(batch(dataset.eval(), range(50)), expected, atol=1e-5)


def test_validation_images_are_held_out_training_images_normalised_only(fake_cifar100):
    dataset = split_cifar100(validation_fraction=0.2).valid_stream[2].dataset
    assert sorted(label for _, label, _ in dataset) == list(range(20, 30))
    for image, label, _ in dataset:
        candidates = normalised(fake_cifar100.train.data[of_classes([label])])
        assert np.isclose(candidates, image.numpy(), atol=1e-5).all(axis=(1, 2, 3)).sum() == 1


def test_streams_are_avalanches_own_by_default(fake_cifar100, monkeypatch):
    both = (fake_cifar100.train, fake_cifar100.test)
    monkeypatch.setattr(
        "avalanche.benchmarks.classic.ccifar100.get_cifar100_dataset", lambda root: both
    )
    ours, avalanches = split_cifar100(20), SplitCIFAR100(20, shuffle=False)
    assert classes(ours.train_stream) == classes(avalanches.train_stream)
    for name in ("train_stream", "test_stream"):
        batches = []
        for scenario in (ours, avalanches):
            torch.manual_seed(0)
            batches.append(batch(getattr(scenario, name)[7].dataset, range(25)))
        np.testing.assert_array_equal(*batches)


@pytest.mark.parametrize("num_experiences", [5, 10, 20, 25])
def test_cifar100_splits_as_the_paper_does(fake_cifar100, num_experiences):
    stream = split_cifar100(num_experiences)
    assert classes(stream.train_stream) == np.arange(100).reshape(num_experiences, -1).tolist()
    assert stream.class_names == [f"class {label}" for label in range(100)]


# --- absent data ---

ABSENT = pytest.mark.parametrize(
    ("build", "download", "folder", "files", "url"),
    [
        (
            split_cifar100,
            "torchvision.datasets.cifar.download_and_extract_archive",
            "cifar100",
            "cifar-100-python/train, cifar-100-python/test, cifar-100-python/meta",
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        ),
        (
            split_mnist,
            "torchvision.datasets.mnist.download_and_extract_archive",
            "mnist",
            "MNIST/raw/train-images-idx3-ubyte, MNIST/raw/train-labels-idx1-ubyte, "
            "MNIST/raw/t10k-images-idx3-ubyte, MNIST/raw/t10k-labels-idx1-ubyte",
            MNIST.mirrors[0],
        ),
        (
            split_tiny_imagenet,
            "avalanche.benchmarks.datasets.downloadable_dataset.download_and_extract_archive",
            "tinyimagenet",
            "tiny-imagenet-200/wnids.txt, tiny-imagenet-200/words.txt, tiny-imagenet-200/train, "
            "tiny-imagenet-200/val",
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        ),
    ],
)


def no_network(*args, **kwargs):
    raise URLError("no network")


@ABSENT
def test_absent_data_are_named_with_the_way_to_get_them(
    build, download, folder, files, url, monkeypatch, tmp_path
):
    monkeypatch.setattr(download, no_network)
    with pytest.raises(FileNotFoundError) as caught:
        build(dataset_root=tmp_path)
    message = str(caught.value)
    assert f"Expected `dataset_root` to be a folder with the {folder} data" in message
    assert f"got {tmp_path}, which lacks {files}, and the download failed" in message
    assert "no network" in message
    assert f"unpack {url} there" in message


@ABSENT
def test_default_folder_is_avalanches(build, download, folder, files, url, monkeypatch, tmp_path):
    monkeypatch.setattr(download, no_network)
    monkeypatch.setitem(avalanche_folders.AVALANCHE_CONFIG, "dataset_location", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=f"got {tmp_path}/{folder}, which"):
        build()


def test_files_that_are_not_the_original_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", no_network)
    monkeypatch.setattr(CIFAR100, "train_list", [["train", "0" * 32]])
    (tmp_path / "cifar-100-python").mkdir()
    for name in ("train", "test", "meta"):
        (tmp_path / "cifar-100-python" / name).write_bytes(b"something else")
    with pytest.raises(FileNotFoundError, match="which holds altered cifar-100-python/train, "):
        split_cifar100(dataset_root=tmp_path)


# --- the paper's data sets themselves ---


def first_batch(stream, batch_size=32):
    images, labels, _ = next(iter(DataLoader(stream[1].dataset, batch_size, shuffle=True)))
    assert images.dtype == torch.float32
    assert set(labels.tolist()) <= set(stream[1].classes_in_this_experience)
    return images


@pytest.mark.real_data
@pytest.mark.parametrize("num_experiences", [5, 10, 20, 25])
def test_real_cifar100_counts_are_the_papers(data_root, num_experiences):
    stream = split_cifar100(num_experiences, validation_fraction=0.1, dataset_root=data_root)
    assert class_counts(stream.train_stream) == [450] * 100
    assert class_counts(stream.valid_stream) == [50] * 100
    assert class_counts(stream.test_stream) == [100] * 100
    assert len(stream.train_stream) == len(stream.valid_stream) == num_experiences
    assert classes(stream.valid_stream) == np.arange(100).reshape(num_experiences, -1).tolist()


@pytest.mark.real_data
def test_real_cifar100_images_and_names_are_torchvisions(data_root):
    stream = split_cifar100(augment=False, dataset_root=data_root)
    assert class_counts(stream.train_stream) == [500] * 100
    known = {0: "apple", 23: "cloud", 26: "crab", 53: "orange", 99: "worm"}
    assert {label: stream.class_names[label] for label in known} == known
    for part, train in ((stream.train_stream, True), (stream.test_stream, False)):
        original = CIFAR100(str(data_root), train=train)
        ours = part[3].dataset
        label = ours[0][1]
        same_class = np.flatnonzero(np.array(original.targets) == label)[:20]
        expected = normalised(original.data[same_class])
        np.testing.assert_allclose(batch(ours, range(20)), expected, atol=1e-5)
        assert label in range(30, 40)
    assert first_batch(stream.train_stream).shape == (32, 3, 32, 32)


@pytest.mark.real_data
def test_real_cifar100_in_the_lab_setting(data_root):
    stream = split_cifar100(train_images_per_class=200, augment=False, dataset_root=data_root)
    original = CIFAR100(str(data_root), train=True)
    first = np.flatnonzero(np.array(original.targets) == 7)[:200]
    in_class = [i for i, label in enumerate(stream.train_stream[0].dataset.targets) if label == 7]
    ours = batch(stream.train_stream[0].dataset, in_class)
    np.testing.assert_allclose(ours, normalised(original.data[first]), atol=1e-5)
    assert class_counts(stream.train_stream) == [200] * 100
    assert class_counts(stream.test_stream) == [100] * 100


@pytest.mark.real_data
def test_real_mnist_is_torchvisions(data_root):
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    test = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    stream = split_mnist(dataset_root=data_root)
    assert class_counts(stream.train_stream) == train
    assert class_counts(stream.test_stream) == test
    assert stream.class_names == DIGITS
    original = MNIST(str(data_root), train=True)
    sevens = original.data[original.targets == 7][:20].float() / 255
    in_class = [i for i, label in enumerate(stream.train_stream[3].dataset.targets) if label == 7]
    ours = batch(stream.train_stream[3].dataset, in_class[:20])
    np.testing.assert_allclose(ours[:, 0] * 0.3081 + 0.1307, sevens, atol=1e-5)
    assert first_batch(stream.train_stream).shape == (32, 1, 28, 28)


@pytest.mark.real_data
def test_real_mnist_validation_is_a_tenth_of_each_digit(data_root):
    whole = np.array(class_counts(split_mnist(dataset_root=data_root).train_stream))
    stream = split_mnist(validation_fraction=0.1, dataset_root=data_root)
    valid, train = class_counts(stream.valid_stream), class_counts(stream.train_stream)
    assert np.abs(valid - whole / 10).max() < 1
    assert (whole == np.add(valid, train)).all()


@pytest.mark.real_data
@pytest.mark.parametrize("num_experiences", [5, 10, 20, 25])
def test_real_tiny_imagenet_counts(data_root, num_experiences):
    stream = split_tiny_imagenet(num_experiences, validation_fraction=0.1, dataset_root=data_root)
    assert class_counts(stream.train_stream) == [90] * 200  # the copy has a fifth of the images
    assert class_counts(stream.valid_stream) == [10] * 200
    assert class_counts(stream.test_stream) == [25] * 200
    assert classes(stream.test_stream) == np.arange(200).reshape(num_experiences, -1).tolist()
    assert first_batch(stream.valid_stream).shape == (32, 3, 64, 64)


def tiny_images(paths):
    mean, deviation = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2023, 0.1994, 0.2010])
    images = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in paths])
    return ((images / 255 - mean) / deviation).transpose(0, 3, 1, 2)


@pytest.mark.real_data
def test_real_tiny_imagenet_images_come_in_the_order_of_their_numbers(data_root, monkeypatch):
    listed = TinyImagenet.get_train_images_paths
    folder = data_root / "tiny-imagenet-200"
    goldfish = (folder / "wnids.txt").read_text().split().index("n01443537")
    numbered = sorted(
        (folder / "train" / "n01443537" / "images").iterdir(),
        key=lambda path: int(path.stem.removeprefix("n01443537_")),
    )
    for step in (1, -1):  # a file system may list a folder in any order
        monkeypatch.setattr(
            TinyImagenet,
            "get_train_images_paths",
            lambda self, name, step=step: sorted(listed(self, name))[::step],
        )
        stream = split_tiny_imagenet(
            20, train_images_per_class=12, augment=False, dataset_root=data_root
        )
        assert stream.class_names[goldfish] == "goldfish"
        dataset = stream.train_stream[goldfish // 10].dataset
        ours = [i for i, label in enumerate(dataset.targets) if label == goldfish]
        expected = tiny_images(numbered[:12])
        np.testing.assert_allclose(batch(dataset, ours), expected, atol=1e-5)


@pytest.mark.real_data
def test_real_tiny_imagenet_test_images_are_the_labelled_validation_images(data_root):
    stream = split_tiny_imagenet(dataset_root=data_root)
    folder = data_root / "tiny-imagenet-200"
    rows = [
        row.split("\t") for row in (folder / "val/val_annotations.txt").read_text().splitlines()
    ]
    wnid = (folder / "wnids.txt").read_text().split()[25]
    paths = [folder / "val" / "images" / row[0] for row in rows if row[1] == wnid]
    dataset = stream.test_stream[1].dataset
    ours = [i for i, label in enumerate(dataset.targets) if label == 25]
    np.testing.assert_allclose(batch(dataset, ours), tiny_images(paths), atol=1e-5)
    assert len(set(stream.class_names)) == 200


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("ours", "avalanches", "num_experiences"),
    [
        (split_cifar100, SplitCIFAR100, 10),
        (split_mnist, SplitMNIST, 5),
        (split_tiny_imagenet, SplitTinyImageNet, 10),
    ],
)
def test_real_streams_are_avalanches_own(data_root, ours, avalanches, num_experiences):
    built = ours(dataset_root=data_root)
    reference = avalanches(num_experiences, shuffle=False, dataset_root=data_root)
    assert len(built.train_stream) == num_experiences
    for name in ("train_stream", "test_stream"):
        one, other = getattr(built, name), getattr(reference, name)
        assert classes(one) == classes(other)
        assert class_counts(one) == class_counts(other)
    samples = [scenario.test_stream[1].dataset for scenario in (built, reference)]
    np.testing.assert_array_equal(*[batch(dataset, range(30)) for dataset in samples])
