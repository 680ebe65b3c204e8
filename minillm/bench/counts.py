"""Counts that a measurement is asked for: tokens, rows, runs."""


def at_least(lowest: int, **counts: int) -> None:
    """Raise ValueError, which names it, for a count below `lowest`."""
    for name, value in counts.items():
        if value < lowest:
            raise ValueError(f"{name} is {value}; at least {lowest} is needed")
