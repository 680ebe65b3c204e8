"""Exercises of notebook 01: byte-pair encoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from minillm.course.checks.kit import Exercise, Value
from minillm.tokenizer.bpe import merge, most_frequent_pair
from minillm.tokenizer.detokenize import StreamingDetokenizer, unfinished

Words = Iterable[tuple[Sequence[Any], int]]
Pair = tuple[Any, Any]
Ranks = dict[tuple[str, str], int]


# --- 01.most_frequent_pair


def _count(words: Words, weight: Callable[[int], int] = int) -> Counter[Pair]:
    counts: Counter[Pair] = Counter()
    for tokens, frequency in words:
        for pair in pairwise(tokens):
            counts[pair] += weight(frequency)
    return counts


def _first(counts: Counter[Pair]) -> Pair | None:
    return max(counts, key=lambda pair: counts[pair], default=None)


def _across_words(words: Words) -> Pair | None:
    joined = [token for tokens, frequency in words for token in list(tokens) * frequency]
    return _first(_count([(joined, 1)]))


def _without_frequency(words: Words) -> Pair | None:
    return _first(_count(words, lambda frequency: 1))


def _by_alphabet(words: Words) -> Pair | None:
    counts = _count(words)
    return min(counts, key=lambda pair: (-counts[pair], pair), default=None)


def _last_of_equals(words: Words) -> Pair | None:
    counts = _count(words)
    return max(reversed(list(counts)), key=lambda pair: counts[pair], default=None)


def _without_overlaps(words: Words) -> Pair | None:
    counts: Counter[Pair] = Counter()
    for tokens, frequency in words:
        used = None
        for i, pair in enumerate(pairwise(tokens)):
            if pair[0] == pair[1] and used == i - 1:
                used = None
                continue
            counts[pair] += frequency
            used = i if pair[0] == pair[1] else None
    return _first(counts)


def _fails_without_pairs(words: Words) -> Pair | None:
    counts = _count(words)
    return max(counts, key=lambda pair: counts[pair])


# --- 01.merge


def _swallows_runs(ids: list[int], pair: Pair, new_id: int) -> list[int]:
    merged: list[int] = []
    i = 0
    while i < len(ids):
        if tuple(ids[i : i + 2]) == pair:
            merged.append(new_id)
            i += 2
            while pair[0] == pair[1] and i < len(ids) and ids[i] == pair[0]:
                i += 1
        else:
            merged.append(ids[i])
            i += 1
    return merged


def _overlaps(ids: list[int], pair: Pair, new_id: int) -> list[int]:
    found = [tuple(ids[i : i + 2]) == pair for i in range(len(ids))]
    merged = []
    for i, token in enumerate(ids):
        if found[i]:
            merged.append(new_id)
        elif not (i and found[i - 1]):
            merged.append(token)
    return merged


def _in_place(ids: list[int], pair: Pair, new_id: int) -> list[int]:
    i = 0
    while i + 1 < len(ids):
        if (ids[i], ids[i + 1]) == pair:
            ids[i : i + 2] = [new_id]
        i += 1
    return ids


def _reads_its_own(ids: list[int], pair: Pair, new_id: int) -> list[int]:
    merged: list[int] = []
    for token in ids:
        merged.append(token)
        while tuple(merged[-2:]) == pair:
            merged[-2:] = [new_id]
    return merged


def _only_once(ids: list[Any], pair: Pair, new_id: Any) -> list[Any]:
    for i in range(len(ids) - 1):
        if (ids[i], ids[i + 1]) == pair:
            return [*ids[:i], new_id, *ids[i + 2 :]]
    return list(ids)


def _loses_the_last(ids: list[int], pair: Pair, new_id: int) -> list[int]:
    merged, i = [], 0
    while i + 1 < len(ids):
        here = (ids[i], ids[i + 1]) == pair
        merged.append(new_id if here else ids[i])
        i += 2 if here else 1
    return merged


# --- 01.encode


def _ranks(merges: str) -> Ranks:
    """ "i+n r+e" to {("i", "n"): 0, ("r", "e"): 1}."""
    pairs = [tuple(entry.split("+")) for entry in merges.split()]
    return {(left, right): rank for rank, (left, right) in enumerate(pairs)}


def _joining(word: str, ranks: Ranks, choose: Callable[[list[Pair]], Pair]) -> list[str]:
    tokens: list[Any] = list(word)
    while known := [pair for pair in pairwise(tokens) if pair in ranks]:
        left, right = choose(known)
        tokens = merge(tokens, (left, right), left + right)
    return tokens


def encode_by_rank(word: str, ranks: Ranks) -> list[str]:
    """The tokens of a word: of the pairs that can be joined, always the one of lowest rank."""
    tokens = list(word)
    while known := [(ranks[pair], i) for i, pair in enumerate(pairwise(tokens)) if pair in ranks]:
        i = min(known)[1]
        tokens[i : i + 2] = [tokens[i] + tokens[i + 1]]
    return tokens


def _left_to_right(word: str, ranks: Ranks) -> list[str]:
    return _joining(word, ranks, lambda known: known[0])


def _highest_rank(word: str, ranks: Ranks) -> list[str]:
    return _joining(word, ranks, lambda known: max(known, key=lambda pair: ranks[pair]))


def _longest_match(word: str, ranks: Ranks) -> list[str]:
    vocabulary = {*word, *(left + right for left, right in ranks)}
    tokens = []
    while word:
        token = next(word[:n] for n in range(len(word), 0, -1) if word[:n] in vocabulary)
        tokens.append(token)
        word = word[len(token) :]
    return tokens


def _first_occurrence(word: str, ranks: Ranks) -> list[str]:
    tokens: list[Any] = list(word)
    for left, right in sorted(ranks, key=lambda pair: ranks[pair]):
        tokens = _only_once(tokens, (left, right), left + right)
    return tokens


_INFERENCE = (
    "i+n r+e e+r e+n c+e e+re en+ce re+n n+ce ere+nce en+c f+er in+f f+e ren+ce ere+n n+c "
    "f+erence n+f in+fer"
)
_SEASHORE = "o+r a+s s+e o+re as+h h+or s+h sh+ore h+o se+a e+a e+as h+ore"


# --- 01.stream


def stream_text(chunks: Sequence[bytes]) -> list[str]:
    """The text that is final after each chunk of bytes, and last what a flush gives."""
    stream = StreamingDetokenizer(lambda i: chunks[i])
    return [*(stream.push(i) for i in range(len(chunks))), stream.flush()]


def _each_chunk_alone(chunks: Sequence[bytes]) -> list[str]:
    return [*(chunk.decode(errors="replace") for chunk in chunks), ""]


def _waits_for_a_good_end(chunks: Sequence[bytes]) -> list[str]:
    data, shown, texts = b"", 0, []
    for chunk in chunks:
        data += chunk
        text = data.decode(errors="replace")
        if text.endswith("\ufffd"):
            texts.append("")
        else:
            texts.append(text[shown:])
            shown = len(text)
    return [*texts, data.decode(errors="replace")[shown:]]


def _loses_the_tail(chunks: Sequence[bytes]) -> list[str]:
    return [*stream_text(chunks)[:-1], ""]


def _holds_whole_chunks(chunks: Sequence[bytes]) -> list[str]:
    held, texts = b"", []
    for chunk in chunks:
        held += chunk
        text = held.decode(errors="replace") if unfinished(held) == 0 else ""
        held = held if text == "" else b""
        texts.append(text)
    return [*texts, held.decode(errors="replace")]


def _drops_what_is_invalid(chunks: Sequence[bytes]) -> list[str]:
    held, texts = b"", []
    for chunk in chunks:
        held += chunk
        final = len(held) - unfinished(held)
        texts.append(held[:final].decode(errors="ignore"))
        held = held[final:]
    return [*texts, held.decode(errors="ignore")]


# --- 01.load_merges


def load_merges(entries: Sequence[Any]) -> Ranks:
    """Merges of a tokenizer.json to rank: texts `a b` and pairs `["a", "b"]`; else ValueError."""
    ranks: Ranks = {}
    for rank, entry in enumerate(entries):
        left, right = entry.split(" ") if isinstance(entry, str) else entry
        ranks[left, right] = rank
    return ranks


def _ignores_pairs(entries: Sequence[Any]) -> Ranks:
    return load_merges([entry for entry in entries if isinstance(entry, str)])


def _ignores_texts(entries: Sequence[Any]) -> Ranks:
    return load_merges([entry for entry in entries if not isinstance(entry, str)])


def _joins_then_splits(entries: Sequence[Any]) -> Ranks:
    return load_merges([e if isinstance(e, str) else " ".join(e) for e in entries])


def _cuts_at_the_first_space(entries: Sequence[Any]) -> Ranks:
    return load_merges([e.split(" ", 1) if isinstance(e, str) else e for e in entries])


def _counts_each_kind(entries: Sequence[Any]) -> Ranks:
    return {**_ignores_pairs(entries), **_ignores_texts(entries)}


EXERCISES = {
    "01.by_hand": Value(
        ["lo", "low", " low"],
        wrong=[
            (
                "`lo` and `ow` both occur 3 times, and of equals the one seen first is taken",
                ["ow", "low", " low"],
            ),
            (
                "a space was joined to the word before it, across the border of a piece: the "
                "pieces are `low`, ` low` and ` lower`",
                ["lo", "low", "low "],
            ),
            (
                "` low` occurs twice, in two pieces; `er` and `lowe` occur once",
                ["lo", "low", "er"],
            ),
            (
                "` low` occurs twice, in two pieces; `er` and `lowe` occur once",
                ["lo", "low", "lowe"],
            ),
            (
                "one merge joins two tokens, not a whole word at once",
                ["low", " low", " lower"],
            ),
            ("the first merge starts from single letters: `l` and `o`", ["low", " low", "er"]),
            ("the list should hold the new tokens, not the pairs", ["l+o", "lo+w", " +low"]),
        ],
    ),
    "01.most_frequent_pair": Exercise(
        most_frequent_pair,
        cases=[
            ([("low", 2), ("lower", 1), ("we", 3)],),
            ([("xa", 1), ("bya", 1), ("bz", 1), ("yz", 1)],),
            ([("bc", 1), ("ab", 1), ("ca", 1)],),
            ([("bc", 2), ("aaaa", 1)],),
            ([("a", 5)],),
            ([],),
        ],
        wrong=[
            ("it counts pairs across the border between two words", _across_words),
            ("it ignores how often each word occurs", _without_frequency),
            (
                "of pairs that occur equally often the one seen first wins, not the first by "
                "alphabet",
                _by_alphabet,
            ),
            ("of pairs that occur equally often the one seen first wins", _last_of_equals),
            (
                "in `aaaa` the pair `aa` stands at three places, and all three count",
                _without_overlaps,
            ),
            ("where no word has two tokens the answer is None", _fails_without_pairs),
        ],
    ),
    "01.merge": Exercise(
        merge,
        cases=[
            ([1, 2, 1, 2], (1, 2), 9),
            ([1, 1, 1], (1, 1), 9),
            ([1, 1, 1, 1, 1], (1, 1), 9),
            ([1, 2, 2, 3], (1, 2), 1),
            ([3, 1, 2, 3], (1, 2), 9),
            ([5], (1, 2), 9),
            ([], (1, 2), 9),
        ],
        wrong=[
            ("a run of equal tokens became a single one: each merge uses two", _swallows_runs),
            (
                "it uses the same token in two merges: after a merge, go on two places further",
                _overlaps,
            ),
            ("it changes the list it was given: build a new one", _in_place),
            ("it reads again what it has just written", _reads_its_own),
            ("it stops after the first occurrence", _only_once),
            ("it loses the last token where that has no neighbour left", _loses_the_last),
        ],
    ),
    "01.encode": Exercise(
        encode_by_rank,
        cases=[
            ("abc", _ranks("b+c a+b")),
            ("abab", _ranks("a+b")),
            ("inference", _ranks(_INFERENCE)),
            ("seashore", _ranks(_SEASHORE)),
            ("x", _ranks("a+b")),
            ("", _ranks("a+b")),
        ],
        wrong=[
            ("it joins from left to right, whatever the rank", _left_to_right),
            ("it takes the longest token that fits next", _longest_match),
            ("it takes the highest rank: the merge learnt first has rank 0", _highest_rank),
            ("it applies a merge at one place only", _first_occurrence),
        ],
    ),
    "01.stream_text": Exercise(
        stream_text,
        cases=[
            ([b"\xc4", b"\x8f"],),
            ([b"\xf0", b"\x9f", b"\x8c", b"\xb6"],),
            ([b"100 \xc2", b"\xb0C"],),
            ([b"\xf0", b"\x9f", b"\x8c", b"A", b"\xb6", b"B"],),
            ([b"a", "\ufffd".encode(), b"\xff", b"b"],),
            ([b"a", b"\xe2\x82"],),
            ([],),
        ],
        wrong=[
            (
                "it decodes every token by itself, where a character may still go on",
                _each_chunk_alone,
            ),
            (
                "it holds back a U+FFFD that is final: a real one, or bytes that can never become "
                "a character",
                _waits_for_a_good_end,
            ),
            ("the bytes left at the end are lost", _loses_the_tail),
            (
                "it holds back whole tokens: only the last, unfinished bytes have to wait",
                _holds_whole_chunks,
            ),
            (
                "bytes that are no character vanish: each should show as U+FFFD",
                _drops_what_is_invalid,
            ),
        ],
    ),
    "01.load_merges": Exercise(
        load_merges,
        cases=[
            (["a b", "ab c"],),
            ([["a", "b"], ["ab", "c"]],),
            (["a b", ["ab", "c"], "abc d"],),
            ([["a", "b c"]],),
            (["a b c"],),
        ],
        wrong=[
            ("merges written as pairs are left out", _ignores_pairs),
            ("merges written as text are left out", _ignores_texts),
            (
                "a pair is joined with a space and split again, but a token may hold a space",
                _joins_then_splits,
            ),
            (
                "`a b c` could mean two merges: refuse it with a ValueError",
                _cuts_at_the_first_space,
            ),
            ("the rank is the place among all merges, of both spellings", _counts_each_kind),
        ],
    ),
}
