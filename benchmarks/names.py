"""Names and numbers that users type: what there is not is answered with what there is."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterable


def expect_known(kind: str, name: str, known: Iterable[str]) -> str:
    """Return a name that is known.

    Args:
        kind: What is named, for the message.
        name: As the user typed it.
        known: All that exist.

    Raises:
        ValueError: An unknown one; the message holds one very near, or those that begin like it, or
            the nearest, or all.

    Example:
        >>> expect_known("method", "ewk", ["ewc", "lwf"])
        Traceback (most recent call last):
        ValueError: Expected a method by name, got 'ewk'. Did you mean 'ewc'?
    """
    known = list(known)
    if name in known:
        return name
    word, low = name.lower(), {one.lower(): one for one in known}
    near = (
        difflib.get_close_matches(word, low, n=1, cutoff=0.85)
        or [one for one in low if one.startswith(word)]
        or difflib.get_close_matches(word, low, n=1, cutoff=0.5)
    )
    near = [low[one] for one in near]
    hint = f"There are {', '.join(near or known)}."
    if len(near) == 1:
        hint = f"Did you mean '{near[0]}'?"
    raise ValueError(f"Expected a {kind} by name, got '{name}'. {hint}")


def whole_number(*, least: int, most: int | None = None) -> Callable[[str], int]:
    """What argparse reads a number with.

    Args:
        least: The smallest that will do.
        most: The largest; None: any.

    Example:
        >>> whole_number(least=1)("2")
        2
    """

    def number(word: str) -> int:
        try:
            value = int(word)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            end = "" if most is None else f" and at most {most}"
            raise argparse.ArgumentTypeError(
                f"Expected a whole number of at least {least}{end}, got {word}."
            )
        return value

    return number


SEED = whole_number(least=0, most=2**32 - 1)  # as NumPy takes it
COUNT = whole_number(least=1)
