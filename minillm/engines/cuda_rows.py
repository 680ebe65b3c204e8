"""What a decode step knows of each row, on the device, in tensors that stay in place."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from minillm.engines.cuda_kernels import Kernels
from minillm.generate import Request


def on_device(values: Sequence[object], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of these values, sent to the device without waiting for it."""
    tensor = torch.tensor(values, dtype=dtype)
    # From pinned memory, which torch does not use again until the copy is done.
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class Rows:
    """The state of up to `rows` rows: one entry each, of which a step uses the first few.

    ids: the token to feed. positions: where it stands, -1 for a row of padding. seeds: of each
    row's own random numbers. top_k, temperature, top_p, min_p, repetition_penalty: as of
    `SamplingParams`. All (rows,). forbidden, seen: (rows, V), True for ids that are never picked,
    and for those of the text so far. greedy: whether all rows take their most likely tokens.
    """

    def __init__(self, rows: int, vocab_size: int, device: torch.device) -> None:
        self.device = device
        self._whole = torch.full((4, rows), -1, dtype=torch.int64, device=device)
        self._real = torch.ones(4, rows, dtype=torch.float32, device=device)
        self.ids, self.positions, self.seeds, self.top_k = self._whole
        self.temperature, self.top_p, self.min_p, self.repetition_penalty = self._real
        self.forbidden = torch.zeros(rows, vocab_size, dtype=torch.bool, device=device)
        self.seen = torch.zeros_like(self.forbidden)
        self.greedy = True

    def place(self, positions: Sequence[int]) -> None:
        """Rows stand at these positions; those beyond are padding."""
        rest = [-1] * (len(self.positions) - len(positions))
        self.positions.copy_(on_device([*positions, *rest], torch.int64, self.device))

    def begin(self, requests: Sequence[Request], positions: Sequence[int]) -> None:
        """Take up the settings of these requests, whose next tokens will stand at `positions`."""
        self.place(positions)
        B, params = len(requests), [request.params for request in requests]
        self.greedy = not any(p.temperature or p.repetition_penalty != 1 for p in params)
        self.top_k[:B] = on_device([max(p.top_k, 0) for p in params], torch.int64, self.device)
        real = [
            [p.temperature for p in params],
            [p.top_p for p in params],
            [p.min_p for p in params],
            [p.repetition_penalty for p in params],
        ]
        self._real[:, :B] = on_device(real, torch.float32, self.device)
        self.forbidden[:B] = self.seen[:B] = False
        for row, request in enumerate(requests):
            seen = [*request.prompt_ids, *request.token_ids]
            for mask, listed in ((self.forbidden, request.forbidden_ids), (self.seen, seen)):
                if listed:
                    ids = on_device(listed, torch.int64, self.device)
                    mask[row].index_fill_(0, ids, True)
            if request.params.temperature:
                # Drawn on the device and left there: a generator that goes on gives other seeds.
                self.seeds[row : row + 1] = torch.randint(
                    2**62, (1,), generator=request.generator, device=self.device
                )

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order; the others become padding."""
        index, count = on_device(rows, torch.int64, self.device), len(rows)
        self._whole[:, :count] = self._whole[:, index]
        self._real[:, :count] = self._real[:, index]
        self.forbidden[:count] = self.forbidden[index]
        self.seen[:count] = self.seen[index]
        self.positions[count:] = -1

    def rest(self, rows: Sequence[int]) -> None:
        """Let these rows be padding until they leave."""
        if rows:
            self.positions.index_fill_(0, on_device(rows, torch.int64, self.device), -1)

    def choose(self, scores: Tensor, kernels: Kernels) -> None:
        """Pick the next token of each row from scores (B, V): `ids`, -1 where there is no choice.

        A draw depends on the row's seed, the position that the token will have, and its scores, and
        on nothing else: no neighbour and no order of steps disturbs it. Where all rows are greedy
        nothing is sorted: the highest score is enough.
        """
        B, scores = len(scores), scores.float()
        if self.greedy:
            highest, ids = scores.masked_fill(self.forbidden[:B], -math.inf).max(dim=-1)
            self.ids[:B] = ids.masked_fill(~highest.isfinite(), -1)
            return
        penalty = self.repetition_penalty[:B, None]
        penalised = torch.where(scores > 0, scores / penalty, scores * penalty)
        scores = torch.where(self.seen[:B], penalised, scores)
        filters = (self.temperature, self.top_k, self.top_p, self.min_p)
        draws = self.seeds[:B], self.positions[:B]
        self.ids[:B] = kernels.sample(scores, *(x[:B] for x in filters), *draws, self.forbidden[:B])
        self.seen[:B].scatter_(1, self.ids[:B, None].clamp(min=0), True)
