"""What a request gives: its text as it becomes final, why it ended, what it cost."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Literal

from minillm.generate import Request
from minillm.tokenizer import AnyTokenizer, StopStrings


@dataclass
class GenerationStats:
    """What one request cost. Times are in seconds, measured on the machine that ran it.

    ttft_s: time to first token, from the start of the request. itl_s: inter-token latency, the
    time from each token to the next, output_tokens - 1 of them. cache_bytes: KV-cache storage
    reserved for this request.
    """

    prompt_tokens: int
    output_tokens: int = 0
    ttft_s: float = 0.0
    itl_s: list[float] = field(default_factory=list)
    cache_bytes: int = 0

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens per second until the first token; 0 before there is one."""
        return self.prompt_tokens / self.ttft_s if self.ttft_s else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens per second after the first one; 0 while there is only one."""
        total = sum(self.itl_s)
        return len(self.itl_s) / total if total else 0.0


@dataclass
class GenerationOutput:
    """The answer to one prompt. While it streams, the fields fill up and finish_reason is None.

    token_ids holds every generated token, the end token included; text leaves end tokens out and
    stops before a stop string. finish_reason: "stop" (end token or stop string), "length"
    (max_new_tokens or the model's context is used up).
    """

    text: str
    token_ids: list[int]
    finish_reason: Literal["stop", "length"] | None
    stats: GenerationStats


class TextStream(Iterator[str]):
    """Pieces of text as they become final. `output` holds what has come so far.

    `close()` (or leaving a `with` block) ends the request early and frees its cache.
    """

    def __init__(self, output: GenerationOutput, pieces: Generator[str, None, None]) -> None:
        self.output = output
        self._pieces = pieces

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """End the request; what it generated so far stays in `output`."""
        self._pieces.close()

    def __enter__(self) -> "TextStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Job:
    """A request together with the text that becomes of its tokens."""

    def __init__(self, request: Request, tokenizer: AnyTokenizer) -> None:
        self.request = request
        self.detokenizer = tokenizer.stream(skip_special_tokens=True)
        # The answer goes on with a text: its first word keeps the space before it.
        self.detokenizer.push(request.prompt_ids[-1])
        self.stops = StopStrings(request.params.stop)
        stats = GenerationStats(len(request.prompt_ids))
        self.output = GenerationOutput("", request.token_ids, None, stats)

    def push(self, token: int, seconds: float) -> str:
        """Take the next token, `seconds` after the last; return the text that is now final."""
        stats = self.output.stats
        stats.output_tokens += 1
        if stats.output_tokens == 1:
            stats.ttft_s = seconds
        else:
            stats.itl_s.append(seconds)
        ends = token in self.request.stop_ids
        piece = self.stops.push("" if ends else self.detokenizer.push(token))
        if self.request.finish_reason is not None and not self.stops.stopped:
            piece += self.stops.push(self.detokenizer.flush()) + self.stops.flush()
        if self.stops.stopped:
            self.request.finish_reason = "stop"
        self.output.finish_reason = self.request.finish_reason
        self.output.text += piece
        return piece
