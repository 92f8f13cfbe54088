"""Which test stands for which line of COMPATIBILITY.md."""

TESTED = {}


def proves(kind, *names):
    """Mark a test as the one behind the lines of these names in the table of a kind."""
    TESTED.setdefault(kind, set()).update(names)
    return lambda test: test
