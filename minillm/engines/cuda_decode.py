"""The decode loop with sampling on the device, one step ahead of what the CPU has read.

The CPU needs a token to write it out and to see whether it ends the text; the GPU needs it for the
next step. So the token stays on the GPU, a copy goes to the CPU, and while that is on its way the
next step runs already.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from minillm.engines.cuda_cache import Pooled
from minillm.engines.cuda_rows import Rows
from minillm.generate import Request

if TYPE_CHECKING:
    from minillm.engines.cuda import CudaEngine


class Unread(NamedTuple):
    """Tokens on their way: those of these requests, in that slot of the `Mailbox`."""

    requests: list[Request]
    slot: int


class Mailbox:
    """Token ids on their way from the device to the CPU: two slots, used in turn."""

    def __init__(self, rows: int, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self._slots = torch.zeros(2, rows, dtype=torch.int64, pin_memory=cuda)
        self._arrived = [torch.cuda.Event() for _ in range(2)] if cuda else []  # type: ignore[no-untyped-call]
        self._next = 0

    def send(self, ids: Tensor) -> int:
        """Begin to copy ids (B,) behind all that was launched before. Returns the slot."""
        slot, self._next = self._next, 1 - self._next
        self._slots[slot, : len(ids)].copy_(ids, non_blocking=True)
        if self._arrived:
            self._arrived[slot].record()
        return slot

    def read(self, slot: int, count: int) -> list[int]:
        """Wait until the ids are there, but for no later work, and return them."""
        if self._arrived:
            self._arrived[slot].synchronize()
        ids: list[int] = self._slots[slot, :count].tolist()
        return ids


class DeviceLoop:
    """`decode`, on a cache that has storage of the engine's pool.

    A step is launched before the tokens of the one before have been read. That a text is at its
    `max_new_tokens` is known without reading, and its row rests in that step. Where a token that is
    read ends a text, the row has taken part in one step too many: its token is dropped, and its
    place in the cache freed.
    """

    def __init__(
        self, engine: "CudaEngine", cache: Pooled, logits: Tensor, requests: Sequence[Request]
    ) -> None:
        assert cache.storage is not None
        self.engine, self.cache, self.storage = engine, cache, cache.storage
        self.running = list(requests)  # one for each row of the cache
        self.state: Rows = self.storage.state
        with engine.on_device():
            self.mailbox = Mailbox(len(requests), engine.device)
        self.unread: deque[Unread] = deque()
        # (B,) tokens in the cache that `decode` would not have there yet.
        self._ahead = torch.zeros_like(cache.lengths)
        self._begin(logits)

    def __iter__(self) -> Iterator[tuple[Request, int]]:
        """Yield (request, token), as `decode` does."""
        try:
            while self.unread and _unfinished(self.unread[0].requests):
                self._launch_next()
                requests, slot = self.unread.popleft()
                ids = self.mailbox.read(slot, len(requests))
                going = [r.finish_reason is None for r in requests]
                pairs = [(r, i) for r, i, goes in zip(requests, ids, going, strict=True) if goes]
                for request, token in pairs:
                    note(request, token)
                yield from pairs
        finally:
            self.cache.truncate((self.cache.lengths - self._ahead).tolist())

    @torch.no_grad()
    def _begin(self, logits: Tensor) -> None:
        """Sample the first token of each request."""
        with self.engine.on_device():
            self.state.begin(self.running, self.cache.lengths.tolist())
            self.state.choose(logits, self.engine.kernels)
            self._send()

    @torch.no_grad()
    def _launch_next(self) -> None:
        """Launch the step after the one that is unread, unless nobody takes part in it."""
        with self.engine.on_device():
            self._keep([row for row, r in enumerate(self.running) if r.finish_reason is None])
            resting = [row for row, request in enumerate(self.running) if self._ends(request)]
            self._ahead = torch.zeros_like(self.cache.lengths)
            if len(resting) == len(self.running):
                return
            self.state.rest(resting)
            self.engine.launch(self.storage, len(self.running))
            added = self._ahead + 1
            added[resting] = 0
            self.cache.extend(added)
            self._ahead = added
            self._send()

    def _ends(self, request: Request) -> bool:
        """Whether the token that is on its way is the last that the request may have."""
        return len(request.token_ids) + 1 >= request.params.max_new_tokens

    def _keep(self, rows: list[int]) -> None:
        if len(rows) < len(self.running):
            self.cache.select(rows)
            self.state.keep(rows)
            self.running = [self.running[row] for row in rows]

    def _send(self) -> None:
        slot = self.mailbox.send(self.state.ids[: len(self.running)])
        self.unread.append(Unread(self.running, slot))


def _unfinished(requests: Sequence[Request]) -> bool:
    return any(request.finish_reason is None for request in requests)


def note(request: Request, token: int) -> None:
    """Take a sampled token, and finish where it is the last, as `Request.pick`.

    Raises ValueError for -1: no distribution could be made of the scores.
    """
    if token < 0:
        raise ValueError(
            "the logits are NaN, +inf or all -inf: no token can be chosen; the model or its input "
            "is broken"
        )
    request.token_ids.append(token)
    if token in request.stop_ids:
        request.finish_reason = "stop"
    elif len(request.token_ids) >= request.params.max_new_tokens:
        request.finish_reason = "length"
