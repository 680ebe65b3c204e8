"""The next token of each row, chosen on the device: the host need not wait to begin a step."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32  # of a program, one to a thread


@triton.jit(do_not_specialize=["B"])
def draw_kernel(
    sums_ptr, kept_ptr, ids_ptr, best_ptr, highest_ptr, temperature_ptr, seeds_ptr, steps_ptr,
    out_ptr, B, V, HALVINGS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Program p draws for ROWS rows: the first token whose running sum of weights exceeds u · sum.

    Only the first `kept` tokens of a row have a weight. Behind them the running sum may still creep
    up: a GPU adds in parallel, and rounds one sum otherwise than the next.
    The place is found by halving the range HALVINGS times, 2^HALVINGS > V, so that 17 numbers are
    read of 128,000. u comes out of a counter-based generator (Philox): a function of seed and step
    that keeps no state. The mask cuts rows past B.
    """
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    mask = row < B
    seed = tl.load(seeds_ptr + row, mask=mask, other=0)
    step = tl.load(steps_ptr + row, mask=mask, other=0).to(tl.int32)
    last = tl.maximum(tl.load(kept_ptr + row, mask=mask, other=1) - 1, 0)
    total = tl.load(sums_ptr + row * V + last, mask=mask, other=0.0)
    # 1 - 2^-24 keeps the target below the whole sum, however it is rounded.
    target = tl.rand(seed, step) * 0.99999994 * total
    low, high = tl.zeros((ROWS,), tl.int64), last
    for _ in range(HALVINGS):
        middle = (low + high) // 2
        beyond = tl.load(sums_ptr + row * V + middle, mask=mask, other=0.0) > target
        high = tl.where(beyond, middle, high)
        low = tl.where(beyond, low, tl.minimum(middle + 1, high))
    token = tl.load(ids_ptr + row * V + low, mask=mask, other=0)
    greedy = tl.load(temperature_ptr + row, mask=mask, other=0.0) <= 0
    token = tl.where(greedy, tl.load(best_ptr + row, mask=mask, other=0), token)
    highest = tl.load(highest_ptr + row, mask=mask, other=0.0)
    # Infinity minus infinity and NaN minus NaN are NaN.
    tl.store(out_ptr + row, tl.where(highest - highest == 0, token, -1), mask=mask)


def filtered(
    scores: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> tuple[Tensor, Tensor]:
    """Temperature, top-k, top-p and min-p, in this order, as `minillm.sampling` applies them.

    In descending order each of them keeps the first few tokens, so that it takes one comparison.

    scores: (B, V), float32. Parameters: (B,). Returns scores in descending order (of equal ones
    the lower id first), -inf where a filter drops them, and their token ids: (B, V) each.
    """
    temperature = torch.where(temperature > 0, temperature, 1.0)[:, None]
    scaled = (scores - scores.amax(dim=-1, keepdim=True)) / temperature
    ordered, ids = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(scores.shape[1], device=scores.device)
    kept_by_k = (rank < top_k[:, None]) | (top_k <= 0)[:, None]
    ordered = ordered.masked_fill(~kept_by_k, -math.inf)
    probabilities = ordered.softmax(dim=-1)
    mass_before = probabilities.cumsum(dim=-1) - probabilities
    kept = (mass_before < top_p[:, None]) | (top_p >= 1)[:, None] | (rank == 0)
    kept &= ordered >= min_p[:, None].log()  # the most likely token has score 0
    # As many from the front: on a GPU the running sum may round down between two tokens.
    return ordered.masked_fill(rank >= kept.sum(dim=-1, keepdim=True), -math.inf), ids


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    steps: Tensor,
    forbidden: Tensor | None = None,
) -> Tensor:
    """Pick the next token of each row, with the meaning of `minillm.sampling.sample`.

    A row with temperature 0 gets its most likely token, of equal ones the first. All stays on the
    device, in tensors whose shapes do not depend on values, so that it can be recorded in a graph.

    logits: (B, V), any floating dtype. temperature, top_p, min_p: (B,), float32; top_k: (B,),
    whole numbers, 0 or less is off: as of `SamplingParams`. seeds, steps: (B,), whole numbers; the
    draw depends on these two and the row's own logits alone. forbidden: (B, V), bool, True for ids
    that are never picked. There is no repetition penalty.
    Returns token ids (B,), int64; -1 where no distribution can be made of a row's logits (NaN,
    +inf, or all -inf), for which `minillm.sampling.sample` raises: the host has to look.
    Raises ValueError for shapes that do not fit.
    """
    B, V = logits.shape
    rows = (temperature, top_k, top_p, min_p, seeds, steps)
    if any(x.shape != (B,) for x in rows) or not V:
        shapes = [tuple(x.shape) for x in rows]
        raise ValueError(f"logits have shape {(B, V)}, parameters {shapes}; ({B},) is needed")
    scores = logits.float()
    if forbidden is not None:
        scores = scores.masked_fill(forbidden, -math.inf)
    ordered, ids = filtered(scores, temperature, top_k, top_p, min_p)
    sums, kept = ordered.exp().cumsum(dim=-1), (ordered > -math.inf).sum(dim=-1)
    best, highest = scores.argmax(dim=-1), scores.amax(dim=-1)
    out = torch.empty(B, dtype=torch.int64, device=logits.device)
    if B:
        draw_kernel[(triton.cdiv(B, ROWS),)](
            sums, kept, ids, best, highest, temperature.contiguous(), seeds.contiguous(),
            steps.contiguous(), out, B, V, HALVINGS=V.bit_length(), ROWS=ROWS, num_warps=1,
        )  # fmt: skip
    return out
