"""Names that users type: an unknown one is answered with the nearest that exists."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def expect_known(kind: str, name: str, known: Iterable[str]) -> str:
    """Return a name that is known.

    Args:
        kind: What is named, for the message.
        name: As the user typed it.
        known: All that exist.

    Raises:
        ValueError: An unknown one; the message holds the nearest, or all.

    Example:
        >>> expect_known("method", "ewk", ["ewc", "lwf"])
        Traceback (most recent call last):
        ValueError: Expected a method by name, got 'ewk'. Did you mean 'ewc'?
    """
    known = list(known)
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean '{near[0]}'?" if near else f"There are {', '.join(known)}."
    raise ValueError(f"Expected a {kind} by name, got '{name}'. {hint}")
