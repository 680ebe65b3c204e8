"""Exercises of notebook 08: a bound by hand, knobs, two kernels, stop strings, a captured step."""

from __future__ import annotations

from functools import partial
from typing import Any

from minillm.course.checks import captured08, stops08
from minillm.course.checks import kernels08 as kernels
from minillm.course.checks.kit import Exercise, Value

WEIGHTS, CACHE, BANDWIDTH = 13.48e9, 4096 * 524_288, 2e12


def _bound_ms(batch: int) -> float:
    return 1e3 * (WEIGHTS + batch * CACHE) / BANDWIDTH


def _by_symptom(letters: Any) -> Any:
    """`"CFAEBD"`, `"c, f, …"` or a list of letters as {1: "C", …}; anything else as it is."""
    if isinstance(letters, list | tuple):
        letters = "".join(map(str, letters))
    if not isinstance(letters, str):
        return letters
    return dict(enumerate(filter(str.isalpha, letters.upper()), start=1))


EXERCISES = {
    "08.lower_bound": Value(
        (_bound_ms(1), _bound_ms(8)),
        tolerance=0.01,
        wrong=[
            (
                "the weights are read once for the whole batch, not once for each text",
                (_bound_ms(1), 8 * _bound_ms(1)),
            ),
            ("every text of the batch has its own cache to read", (_bound_ms(1), _bound_ms(1))),
            ("the cache is left out", (1e3 * WEIGHTS / BANDWIDTH, 1e3 * WEIGHTS / BANDWIDTH)),
            (
                "a step of eight texts is asked for, not an eighth of it",
                (_bound_ms(1), _bound_ms(8) / 8),
            ),
            ("these are seconds", (_bound_ms(1) / 1e3, _bound_ms(8) / 1e3)),
            (
                "2,000 GB/s are bytes; nothing here is in bits",
                (8 * _bound_ms(1), 8 * _bound_ms(8)),
            ),
            ("two numbers are asked for: for one text, and for eight", _bound_ms(1)),
            ("one text comes first, then eight", (_bound_ms(8), _bound_ms(1))),
            ("the weights are left out", (1e3 * CACHE / BANDWIDTH, 8e3 * CACHE / BANDWIDTH)),
        ],
    ),
    "08.knobs": Value(
        _by_symptom("CFAEBD"),
        form=_by_symptom,
        wrong=[
            (
                "2 and 5 have changed places: a step that waits for its own launches gains nothing "
                "from smaller pieces of a prompt, and a stutter during someone else's prompt "
                "nothing from a graph",
                _by_symptom("CBAEFD"),
            ),
            (
                "1 and 6 have changed places: look at which bytes there are more of, those of the "
                "weights or those of the caches",
                _by_symptom("DFAEBC"),
            ),
            (
                "3 and 4 have changed places: a larger batch does not let a prompt start sooner, "
                "and a kept prefix helps no step",
                _by_symptom("CFEABD"),
            ),
            (
                "1 and 4 have changed places: a batch serves more people, and gives none of them "
                "tokens sooner",
                _by_symptom("EFACBD"),
            ),
            (
                "1 and 5 have changed places: who reads at full bandwidth gains nothing from fewer "
                "launches, and who waits for launches nothing from fewer bytes",
                _by_symptom("BFAECD"),
            ),
            (
                "2 and 3 have changed places: pieces of a prompt take no less time together, they "
                "let others in between; and a prompt that nobody sent before is in no cache",
                _by_symptom("CAFEBD"),
            ),
            (
                "3 and 5 have changed places: a graph saves a step its launches; 6,000 tokens of "
                "prompt wait for arithmetic",
                _by_symptom("CFBEAD"),
            ),
            (
                "4 and 5 have changed places: a graph gives one text its tokens sooner, and at "
                "full bandwidth not even that; a hundred texts share what a step reads",
                _by_symptom("CFABED"),
            ),
            (
                "5 and 6 have changed places: where memory is at 2 % of its bandwidth, fewer bytes "
                "do not help",
                _by_symptom("CFAEDB"),
            ),
            ("six letters are asked for, one for each symptom", _by_symptom("CFAEB")),
        ],
    ),
    "08.add_norm": Exercise(
        kernels.add_norm,
        cases=[
            (*kernels.rows(2, 24, 1.0, 0), 1e-5),
            (*kernels.rows(1, 32, 300.0, 1), 1e-5),
            (*kernels.rows(2, 20, 0.02, 2), 1e-3),
        ],
        drive=kernels.run_add_norm,
        tolerance=4e-3,
        wrong=[
            (
                "it takes the mean and then squares it; square first",
                partial(kernels.add_norm, FAULT=4),
            ),
            ("eps is added outside of the square root", partial(kernels.add_norm, FAULT=6)),
            (
                "the squares are summed in float16, where 300² is infinite: convert before you "
                "square",
                partial(kernels.add_norm, FAULT=3),
            ),
            ("it divides by BLOCK; the row has C numbers", partial(kernels.add_norm, FAULT=5)),
            (
                "it normalises x alone; the row is x + residual",
                partial(kernels.add_norm, FAULT=2),
            ),
            (
                "the sum is never stored: the next residual is missing",
                partial(kernels.add_norm, FAULT=9),
            ),
            ("the residual is added after the norm, too", partial(kernels.add_norm, FAULT=8)),
            (
                "loads have no mask, and what lies beyond column C counts as part of the row",
                partial(kernels.add_norm, FAULT=1),
            ),
            (
                "its stores have no mask: they write beyond the row, over what belongs to others",
                partial(kernels.add_norm, FAULT=10),
            ),
            ("the weight is left out", partial(kernels.add_norm, FAULT=7)),
            (
                "every program takes the first row; `tl.program_id(0)` says which one is its own",
                partial(kernels.add_norm, FAULT=11),
            ),
            (
                "row r begins at r · C, not at r · BLOCK: the tensor has no gaps",
                partial(kernels.add_norm, FAULT=12),
            ),
            (
                "it divides by the mean square; its root is asked for",
                partial(kernels.add_norm, FAULT=13),
            ),
        ],
    ),
    "08.stop": stops08.EXERCISE,
    "08.int4_dot": Exercise(
        kernels.int4_dot,
        cases=[
            (*kernels.weights(3, 24, 8, 0), 8),
            (*kernels.weights(2, 32, 16, 1), 16),
            (*kernels.weights(1, 20, 4, 2), 4),
        ],
        drive=kernels.run_int4_dot,
        tolerance=1e-4,
        wrong=[
            (
                "the nibbles have changed places: the low four bits come first",
                partial(kernels.int4_dot, FAULT=4),
            ),
            (
                "it reads the two halves of a row; neighbours share a byte",
                partial(kernels.int4_dot, FAULT=5),
            ),
            ("one scale for the row; each group has its own", partial(kernels.int4_dot, FAULT=3)),
            ("the zero point is not subtracted", partial(kernels.int4_dot, FAULT=6)),
            ("the zero point is subtracted after the scale", partial(kernels.int4_dot, FAULT=7)),
            (
                "no mask at the tail: BLOCK is a power of two, and the row is shorter",
                partial(kernels.int4_dot, FAULT=1),
            ),
            ("every program reads the first row of codes", partial(kernels.int4_dot, FAULT=2)),
            (
                "scales and zero points of the first row for all rows; a row has C / GROUP of them",
                partial(kernels.int4_dot, FAULT=8),
            ),
            (
                "it counts groups in bytes: a byte holds two columns, so column 2 · pair is in "
                "group 2 · pair // GROUP",
                partial(kernels.int4_dot, FAULT=9),
            ),
            ("a row of codes is C / 2 bytes, not C", partial(kernels.int4_dot, FAULT=10)),
            (
                "codes and zero points are bytes, and 3 − 7 of bytes is 252: convert before you "
                "subtract",
                partial(kernels.int4_dot, FAULT=11),
            ),
            (
                "the codes in the high four bits, those of the odd columns, are left out",
                partial(kernels.int4_dot, FAULT=12),
            ),
            ("every program stores at y[0]", partial(kernels.int4_dot, FAULT=13)),
        ],
    ),
    "08.captured": captured08.EXERCISE,
}
