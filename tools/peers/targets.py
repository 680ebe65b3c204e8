"""What the figures should be, judged on the lines of one section."""

import statistics
from collections.abc import Sequence

from tools.peers.report import Line, Verdict
from tools.peers.rounds import LLAMA, OURS


def api(lines: Sequence[Line]) -> list[Verdict]:
    """Decode through each engine's own interface."""
    return [
        Verdict(f"decode, {line.what}: × llama.cpp", line.times_as_fast(OURS, LLAMA), 1.5)
        for line in lines
    ]


def step(lines: Sequence[Line]) -> list[Verdict]:
    """A bare step beside a bare step."""
    return [Verdict(f"{x.what}: × llama.cpp", x.times_as_fast(OURS, LLAMA), 1.3) for x in lines]


def prefill(lines: Sequence[Line]) -> list[Verdict]:
    """The longest prompt, beside the faster of the peers."""
    longest = lines[-1]
    peer = min(set(longest.seconds) - {OURS}, key=longest.median)
    text = f"prefill, {longest.what}: × {peer}, the faster peer"
    return [Verdict(text, longest.times_as_fast(OURS, peer), 1.1)]


def growth(lines: Sequence[Line]) -> list[Verdict]:
    """How much longer a step takes at the long context; llama.cpp's growth beside."""
    found = []
    for short, long, limit in ((lines[0], lines[1], 2.0), (lines[2], lines[3], 1.5)):
        ours, theirs = (ratio(long, short, engine) for engine in (OURS, LLAMA))
        text = f"ITL, {long.what}, over a short context (llama.cpp: {theirs:.2f})"
        found.append(Verdict(text, ours, limit, at_most=True))
    return found


def batch(lines: Sequence[Line]) -> list[Verdict]:
    """Tokens per second of eight rows over those of one, and over llama.cpp's eight."""
    one, eight = lines
    gains = {name: eight.count * ratio(one, eight, name) for name in one.seconds}
    peers = ", ".join(f"{name}: {gain:.2f}" for name, gain in gains.items() if name != OURS)
    return [
        Verdict(f"tokens/s, {eight.what} over 1 ({peers})", gains[OURS], 2.0),
        Verdict(f"{eight.what}: × llama.cpp", eight.times_as_fast(OURS, LLAMA), 1.5),
    ]


def ratio(above: Line, below: Line, engine: str) -> float:
    """One line's seconds over another's, both of one engine: the median of the rounds' ratios."""
    pairs = zip(above.seconds[engine], below.seconds[engine], strict=True)
    return statistics.median(a / b for a, b in pairs)
