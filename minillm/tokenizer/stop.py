"""Stop strings: end a stream of text at given strings without ever showing a piece of one."""

from collections.abc import Sequence

__all__ = ["StopStrings"]


class StopStrings:
    """Passes text on up to the first stop string, which is not part of the output.

    A stop string may arrive in several pieces, so an end of the text that may yet become one is
    held back. When a push completes stop strings, the text is cut where the earliest of them
    begins. A shorter one that is complete does not wait for a longer one that may begin before it:
    with the stops `b` and `abc`, the pieces `xab`, `c` give `xa`.

    stops: one string or several; none passes everything on. ValueError for an empty one.
    """

    def __init__(self, stops: str | Sequence[str] = ()) -> None:
        self._stops = (stops,) if isinstance(stops, str) else tuple(stops)
        if not all(isinstance(stop, str) and stop for stop in self._stops):
            raise ValueError(f"stop is {stops!r}; texts that are not empty are needed")
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Take the next piece; return the text that no stop string can claim any more."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [start for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        longest = max(map(len, self._stops), default=1) - 1
        for start in range(max(0, len(text) - longest), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stops):
                break
        else:
            start = len(text)
        self._held = text[start:]
        return text[:start]

    def flush(self) -> str:
        """The end: what was held back, if no stop string came of it."""
        text, self._held = self._held, ""
        return text
