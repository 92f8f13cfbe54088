"""The paper's table of hyperparameters, and those of every other method, with their source.

python -m benchmarks.hyperparameter_table --setting cifar100-10
"""

from __future__ import annotations

import argparse

from benchmarks.hyperparameters import PUBLISHED, batch_size_of, hyperparameters_of
from benchmarks.markup import NOTHING, Entry, Row, Table, as_text
from benchmarks.methods import METHODS
from benchmarks.names import expect_known
from benchmarks.settings import SETTINGS

PAPER = ("cifar100-10", "tiny-10")
COLUMNS = ("batch size", "hyperparameters", "source")
NOTE = (
    "Published: in the paper, but classifier_lr and last_epochs in the authors' runs, and "
    "memory_strength in Avalanche."
)


def table(setting: str) -> Table:
    """What each method runs with in a setting: published, chosen by `benchmarks.tune`, or neither.

    Raises:
        ValueError: An unknown setting.
    """
    plan = SETTINGS[expect_known("setting", setting, SETTINGS)]
    published = PUBLISHED.get(plan.tuned_on or setting, {})
    rows = []
    for name, method in METHODS.items():
        if method.trains_as is not None:
            continue
        try:
            values = hyperparameters_of(name, setting)
        except ValueError:
            texts, source = NOTHING, "none: benchmarks.tune"
        else:
            texts = ", ".join(f"{key} {value:g}" for key, value in values.items())
            source = "published" if values == published.get(name) else "benchmarks.tune"
        batch_size = str(batch_size_of(name, setting))
        rows.append(Row(method.title, tuple(map(Entry, (batch_size, texts, source)))))
    heads = tuple((name,) for name in COLUMNS)
    return Table(heads, tuple(rows), title=plan.title, notes=(NOTE,) if published else ())


def main() -> None:
    """Print the table of a setting, or of the paper's two."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--setting", nargs="+", default=PAPER, metavar="NAME")
    try:
        for number, setting in enumerate(parser.parse_args().setting):
            shown = table(setting)
            print("\n" * bool(number) + f"{shown.title}\n\n{as_text(shown)}")
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
