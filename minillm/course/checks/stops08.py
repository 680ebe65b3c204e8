"""Stop strings for exercise 08.stop: streams with the faults that its check knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minillm.course.checks.kit import Exercise
from minillm.tokenizer.stop import StopStrings


class _Stops:
    """Stop strings with chosen faults: what to hold back, where to cut, what the end gives."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops, self.text, self.given, self.stopped = stops, "", 0, False

    def push(self, piece: str) -> str:
        """The next piece; what may be shown."""
        if self.stopped:
            return ""
        self.text += piece
        found = self.found()
        if found:
            self.stopped = True
            return self._give(self.cut(found))
        return self._give(len(self.text) - self.held())

    def flush(self) -> str:
        """The end; what was held back."""
        return "" if self.stopped else self._give(len(self.text))

    def _give(self, end: int) -> str:
        text, self.given = self.text[self.given : end], max(end, self.given)
        return text

    def found(self) -> list[int]:
        """Where stop strings begin."""
        return [at for stop in self.stops if (at := self.text.find(stop)) >= 0]

    def cut(self, found: list[int]) -> int:
        """Where the text ends."""
        return min(found)

    def sizes(self) -> list[int]:
        """How long the ends of the text are that a stop string begins with, the longest first."""
        longest = min(max(map(len, self.stops)) - 1, len(self.text))
        ends = {size: self.text[-size:] for size in range(longest, 0, -1)}
        return [n for n, end in ends.items() if any(stop.startswith(end) for stop in self.stops)]

    def held(self) -> int:
        """How many characters at the end may yet become a stop string."""
        return max(self.sizes(), default=0)


class _EmitsBeginning(_Stops):
    def held(self) -> int:
        return 0


class _WithinPiece(_EmitsBeginning):
    def found(self) -> list[int]:
        return [at for stop in self.stops if (at := self.text.find(stop, self.given)) >= 0]


class _AtTheEnd(_Stops):
    """Notices a stop string only where the text so far ends with it."""

    def found(self) -> list[int]:
        ends = [stop for stop in self.stops if self.text.endswith(stop)]
        return [len(self.text) - len(stop) for stop in ends]


class _OneStop(_Stops):
    def __init__(self, stops: Sequence[str]) -> None:
        super().__init__(stops[:1])


class _HoldsAlways(_Stops):
    def held(self) -> int:
        return min(max(map(len, self.stops)) - 1, len(self.text))


class _HoldsOneMore(_Stops):
    def held(self) -> int:
        return min(max(map(len, self.stops)), len(self.text))


class _HoldsAll(_Stops):
    def held(self) -> int:
        return len(self.text) - self.given


class _HoldsWhatIsPending(_Stops):
    """Nothing of what has come may be shown, as long as some end of it may become a stop string."""

    def held(self) -> int:
        return len(self.text) - self.given if self.sizes() else 0


class _HoldsShortest(_WithinPiece):
    def held(self) -> int:
        return min(self.sizes(), default=0)


class _LosesHeld(_Stops):
    def push(self, piece: str) -> str:
        if not self.stopped:
            self.text, self.given = "", 0
        return super().push(piece)


class _KeepsStop(_Stops):
    def cut(self, found: list[int]) -> int:
        at = min(found)
        return at + max(len(s) for s in self.stops if self.text.startswith(s, at))


class _CutsTooMuch(_Stops):
    """Takes whatever was held for a stop string when the text ends."""

    def flush(self) -> str:
        return ""


class _LastStop(_Stops):
    def cut(self, found: list[int]) -> int:
        return max(found)


class _FirstListed(_Stops):
    def cut(self, found: list[int]) -> int:
        return found[0]


class _KeepsFirstListed(_Stops):
    def cut(self, found: list[int]) -> int:
        return found[0] + next(len(s) for s in self.stops if self.text.startswith(s, found[0]))


class _LastOccurrence(_Stops):
    def cut(self, found: list[int]) -> int:
        return min(at for stop in self.stops if (at := self.text.rfind(stop)) >= 0)


class _GoesOn(_Stops):
    def push(self, piece: str) -> str:
        if self.stopped:
            self.text, self.given, self.stopped = "", 0, False
        return super().push(piece)


class _NoSecondStart(_Stops):
    """Looks only whether a stop string begins with all that is held, never with less of it."""

    def held(self) -> int:
        pending = self.text[self.given :]
        return len(pending) if any(s.startswith(pending) for s in self.stops) else 0


def _run(make: Callable[..., Any], stops: list[str], pieces: list[str]) -> list[str]:
    """What an answer hands out for each piece, and at the end."""
    stream = make(stops)
    shown = [stream.push(piece) for piece in pieces]
    return [*shown, stream.flush()]


_HOLDS_TOO_MUCH = "it holds back text that no stop string begins with; the reader waits for nothing"
_KEEPS = "the stop string itself is handed out"
_EARLIEST = "of several stop strings the one counts that begins earliest in the text"

EXERCISE = Exercise(
    StopStrings,
    cases=[
        (["END"], ["one E", "ND two", " three"]),
        (["END"], ["an E", "lse, E", "N"]),
        (["\n\n", "User:"], ["Yes.\nUs", "er: no\n", "\n"]),
        (["aab"], ["xaa", "ab", "c"]),
        (["aab"], ["a", "aa", "b c"]),
        (["stop", "."], ["no. st", "op"]),
        (["END"], ["plain words ", "pass at once"]),
        (["two", "one"], ["a one, a two", ", a three"]),
        (["."], ["One. Two. Th", "ree."]),
    ],
    drive=_run,
    wrong=[
        (
            "it hands out the beginning of a stop string before the rest has come",
            _EmitsBeginning,
        ),
        ("it looks at each piece alone; a stop string may lie across two", _WithinPiece),
        (_HOLDS_TOO_MUCH, _HoldsAlways),
        (_HOLDS_TOO_MUCH, _HoldsOneMore),
        (_HOLDS_TOO_MUCH, _HoldsWhatIsPending),
        ("it hands out nothing before the end; that is no stream", _HoldsAll),
        (
            "it holds back too little: the longest end that a stop string begins with counts",
            _HoldsShortest,
        ),
        ("what was held back is lost when the next piece comes", _LosesHeld),
        (_KEEPS, _KeepsStop),
        (_KEEPS, _KeepsFirstListed),
        (
            "a stop string may stand in the middle of a piece, with more text behind it",
            _AtTheEnd,
        ),
        ("it looks for the first of the stop strings and no other", _OneStop),
        (
            "it cuts too much: what is held at the end is text, when no stop string came of it",
            _CutsTooMuch,
        ),
        (_EARLIEST, _LastStop),
        (_EARLIEST, _FirstListed),
        (
            "a stop string that occurs twice counts where it is first: `find`, not `rfind`",
            _LastOccurrence,
        ),
        ("it goes on after a stop", _GoesOn),
        (
            "when a held text turns out to be none, it forgets that its end may be the "
            "beginning of another",
            _NoSecondStart,
        ),
    ],
)
