"""The numbers that the paper published, from ``published.csv``."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

PUBLISHED = Path(__file__).with_name("published.csv")
AVERAGE = "average"  # stands in the place of a setting


@dataclasses.dataclass(frozen=True)
class Published:
    """A number of the paper, a line of `published.csv`; see its head."""

    table: str
    label: str
    method: str
    ours: str
    setting: str
    scenario: str
    measure: str
    value: str
    deviation: str
    note: str

    @property
    def is_quoted(self) -> bool:
        """Whether the paper has it from another one."""
        return self.note.startswith("quoted")

    @property
    def text(self) -> str:
        """As the paper prints it, in percent."""
        text = f"{self.value} ± {self.deviation}" if self.deviation else self.value
        return f"{text}†" if self.is_quoted else text


def read_all() -> list[Published]:
    """All numbers, in the order of the paper's tables."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        return [Published(**line) for line in csv.DictReader(file)]


def read_published(table: str) -> list[Published]:
    """The paper's numbers of a table, by its name in `EXPERIMENTS`."""
    return [published for published in read_all() if published.table == table]
