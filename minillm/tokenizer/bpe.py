"""Byte-level byte-pair encoding: learn merges from text, and apply them.

A token is a string of bytes. Training starts from the 256 single bytes and joins, again and again,
the pair of neighbours that occurs most often. Encoding replays the merges in the order in which
they were learnt. (Sennrich et al. 2016, arXiv:1508.07909; on bytes: Radford et al. 2019.)
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import pairwise
from pathlib import Path
from typing import Literal

from minillm.tokenizer import hf_json
from minillm.tokenizer.added import AddedVocabulary
from minillm.tokenizer.checks import check_bytes, check_text, check_vocab_size
from minillm.tokenizer.detokenize import StreamingDetokenizer
from minillm.tokenizer.hf_json import TokenizerData, spell
from minillm.tokenizer.pretokenize import GPT2_SPLIT, Step, pretokenize
from minillm.tokenizer.vocabulary import Vocabulary

__all__ = ["Tokenizer", "count_words", "encode_piece", "merge", "most_frequent_pair", "train_bpe"]


def most_frequent_pair(words: Iterable[tuple[Sequence[int], int]]) -> tuple[int, int] | None:
    """The pair of neighbours that occurs most often, or None where no word has two ids.

    words: (ids, how often the word occurs). A pair never reaches across two words. In `aaa` the
        pair `aa` occurs twice.
    Of pairs that occur equally often, the one seen first wins.

    >>> most_frequent_pair([(b"low", 2), (b"lower", 1), (b"we", 3)])  # "we" occurs 4 times
    (119, 101)
    """
    counts: Counter[tuple[int, int]] = Counter()
    for ids, frequency in words:
        for pair in pairwise(ids):
            counts[pair] += frequency
    return max(counts, key=lambda pair: counts[pair], default=None)


def merge(ids: Sequence[int], pair: tuple[int, int], new_id: int) -> list[int]:
    """A new list in which new_id stands for each occurrence of the pair, from left to right.

    >>> merge([97, 97, 97], (97, 97), 256)
    [256, 97]
    """
    merged, i = [], 0
    while i < len(ids):
        if i + 1 < len(ids) and (ids[i], ids[i + 1]) == pair:
            merged.append(new_id)
            i += 2
        else:
            merged.append(ids[i])
            i += 1
    return merged


def count_words(texts: Iterable[str], steps: Iterable[Step]) -> dict[bytes, int]:
    """How often each piece of the texts occurs, in the order of first occurrence.

    >>> count_words(["low low lower"], [partial(split, pattern=regex.compile(GPT2_SPLIT))])
    {b'low': 1, b' low': 1, b' lower': 1}
    """
    if isinstance(texts, str):
        raise TypeError(f"{texts!r:.80} is one text; a list of texts is needed")
    words: Counter[str] = Counter()
    for text in texts:
        check_text(text)
        words.update(pretokenize(text, steps))
    return {word.encode(): count for word, count in words.items()}


def train_bpe(words: Mapping[bytes, int], num_merges: int) -> list[tuple[int, int]]:
    """Learn merges: `most_frequent_pair`, then `merge` in every word, num_merges times.

    words: how often each piece of the text occurs, in the order of their first occurrence.
    Returns: the merges in order; merge i joins its pair to token 256 + i. Fewer than num_merges
        when no pair is left.
    Cost: a merge visits only the words that hold its pair, not the whole text.

    >>> train_bpe({b"aaabdaaabac": 1}, 3)  # aa, then aaa, then aaab
    [(97, 97), (256, 97), (257, 98)]
    """
    sequences, frequencies = [list(word) for word in words], list(words.values())
    counts: Counter[tuple[int, int]] = Counter()
    places: defaultdict[tuple[int, int], set[int]] = defaultdict(set)  # pair to its words
    for word, ids in enumerate(sequences):
        for pair in pairwise(ids):
            counts[pair] += frequencies[word]
            places[pair].add(word)
    # The top of the heap is the pair with the highest count, then the earliest word. Counts only
    # fall and first words only move back, so an entry is at worst too good: it is set right when
    # it comes to the top.
    heap = [(-counts[pair], min(places[pair]), pair) for pair in counts]
    heapify(heap)
    merges: list[tuple[int, int]] = []
    while heap and len(merges) < num_merges:
        pair = heap[0][2]
        if not places[pair]:
            heappop(heap)
            continue
        entry = (-counts[pair], min(places[pair]), pair)
        if entry != heap[0]:
            heapreplace(heap, entry)
            continue
        # Of several pairs with this count and first word, take the one that comes first in it.
        best = next(p for p in pairwise(sequences[entry[1]]) if counts[p] == counts[pair])
        new_id = 256 + len(merges)
        merges.append(best)
        created = set()
        for word in list(places[best]):
            for old in pairwise(sequences[word]):
                counts[old] -= frequencies[word]
                places[old].discard(word)
            sequences[word] = merge(sequences[word], best, new_id)
            for new in pairwise(sequences[word]):
                counts[new] += frequencies[word]
                places[new].add(word)
                if new_id in new:
                    created.add(new)
        for new in created:
            heappush(heap, (-counts[new], min(places[new]), new))
    return merges


def encode_piece(
    ids: Sequence[int], merges: Mapping[tuple[int, int], tuple[int, int]]
) -> list[int]:
    """Apply merges to the ids of one piece: always the pair of lowest rank, leftmost first.

    merges: pair to (rank, id of the merged token); the rank is the place in the order of training.
    Cost: O(n log n) for n ids. The ids form a linked list, so that a merge moves nothing, and the
        pairs wait in a heap.

    >>> encode_piece(b"abc", {(98, 99): (0, 256), (97, 98): (1, 257)})  # bc before ab
    [97, 256]
    """
    ids = list(ids)
    end = len(ids)
    before, after = list(range(-1, end - 1)), list(range(1, end + 1))  # each id's neighbours
    # An entry is rank and place in one number, rank * end + place: half the time of a tuple.
    heap = [merges[pair][0] * end + i for i, pair in enumerate(pairwise(ids)) if pair in merges]
    heapify(heap)
    while heap:
        rank, left = divmod(heappop(heap), end)
        right = after[left]
        if right == end:
            continue
        found = merges.get((ids[left], ids[right]))
        if found is None or found[0] != rank:
            continue  # one of the two has been merged meanwhile
        ids[left], ids[right] = found[1], -1  # -1: merged into its neighbour
        after[left] = after[right]
        if after[left] < end:
            before[after[left]] = left
        for i in (before[left], left):
            if i >= 0 and after[i] < end:
                found = merges.get((ids[i], ids[after[i]]))
                if found is not None:
                    heappush(heap, found[0] * end + i)
    return [token for token in ids if token >= 0]


def piece_ids(piece: str, data: TokenizerData) -> list[int]:
    """Token ids of one piece of text: its bytes, then merges.

    With `ignore_merges` (Llama 3) a piece that is a token needs none. A byte without an id is left
    out.
    """
    if data.ignore_merges and (whole := data.vocab.get(spell(piece.encode()))) is not None:
        return [whole]
    byte_ids = [data.byte_ids[byte] for byte in piece.encode()]
    return encode_piece([i for i in byte_ids if i is not None], data.merges)


def encode_text(text: str, data: TokenizerData, cache: dict[str, list[int]]) -> list[int]:
    """Token ids of a text without added tokens: cut into pieces, each piece by `piece_ids`.

    cache: remembers pieces, for those of ordinary text come again and again. It stays small: at
        most 100,000 pieces, and none that is long.
    """
    ids: list[int] = []
    for piece in pretokenize(text, data.steps):
        if (found := cache.get(piece)) is None:
            found = piece_ids(piece, data)
            if len(piece) <= 64 and len(cache) < 100_000:
                cache[piece] = found
        ids += found
    return ids


class Tokenizer(Vocabulary):
    """Text to token ids and back. Made by `from_file` or `train`; `save` writes it.

    Ids equal those of the `tokenizers` library for every text, up to characters newer than its or
    `regex`'s Unicode tables. `clean_up_tokenization_spaces` is ignored: it deletes real spaces.
    """

    def __init__(self, data: TokenizerData) -> None:
        super().__init__(data)
        self.added = AddedVocabulary(data.added, data.forms)
        self._cache: dict[str, list[int]] = {}

    @classmethod
    def from_file(cls, path: str | Path) -> "Tokenizer":
        """Read a tokenizer.json; ValueError names what is broken in it or not supported."""
        return cls(hf_json.read(path))

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        vocab_size: int,
        special_tokens: Sequence[str] = (),
        pattern: str = GPT2_SPLIT,
    ) -> "Tokenizer":
        """Learn a vocabulary: 256 bytes, then merges, then the special tokens.

        texts: each is cut by itself. A special token in them counts as ordinary text.
        vocab_size: in the end there are fewer tokens when the texts run out of pairs to merge.
        pattern: cuts a text into the pieces across which nothing is merged.
        """
        num_merges = check_vocab_size(vocab_size, len(special_tokens))
        steps = hf_json.trained((), special_tokens, pattern).steps
        merges = train_bpe(count_words(texts, steps), num_merges)
        return cls(hf_json.trained(merges, special_tokens, pattern))

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        allowed_special: Literal["none", "all"] | Collection[str] = "none",
        strict: bool = False,
    ) -> list[int]:
        """Token ids of a text.

        add_special_tokens: add the tokens that tokenizer.json wants around a text, such as BOS.
        allowed_special: special tokens whose text becomes their id. "none": it is ordinary text,
            whoever wrote it; "all": as `tokenizers` does; or a collection of them.
        strict: ValueError for a byte that has no token, which is otherwise lost with a warning.
        Raises: ValueError for a lone surrogate, which is no text, and for an unknown special token.
        """
        check_text(text)
        check_bytes(text, self.data.lost_bytes, strict)
        ids = list(self.data.prefix) if add_special_tokens else []
        for part, token_id in self.added.split(text, allowed_special):
            ids += encode_text(part, self.data, self._cache) if token_id is None else [token_id]
        return ids + list(self.data.suffix) if add_special_tokens else ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """Text of token ids; ValueError for an unknown one.

        Bytes that are not UTF-8 become U+FFFD. skip_special_tokens: leave special tokens out.
        """
        skip = set(self.special_tokens.values()) if skip_special_tokens else set()
        return b"".join(self.token_bytes(i) for i in ids if i not in skip).decode(errors="replace")

    def stream(self, *, skip_special_tokens: bool = False) -> StreamingDetokenizer:
        """A decoder that takes ids one by one and gives text as soon as it is final."""
        skip = self.special_tokens.values() if skip_special_tokens else ()
        return StreamingDetokenizer(self.token_bytes, skip)
