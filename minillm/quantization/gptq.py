"""GPTQ: round one column of weights at a time, and let the columns that follow make up for it.

Rounding to nearest treats every weight alone. But a layer's output is a sum over columns, and where
the inputs of two columns rise and fall together, an error in one can be undone by the other. How
inputs go together is in H = mean x·xᵀ (`Statistics.hessian`); without such correlations, H being
diagonal, nothing is gained.
"""

import torch
from torch import Tensor

from minillm.kernels.reference import dequantize
from minillm.quantization.int4 import Quantized, check_weight, group_grid, nearest_codes
from minillm.quantization.scheme import check_group_size

__all__ = ["gptq", "inverse_factor"]

# So often a factor is tried, with ten times the damping each time.
ATTEMPTS = 3


def gptq(
    weight: Tensor,
    hessian: Tensor,
    group_size: int = 64,
    *,
    bits: int = 4,
    symmetric: bool = False,
    act_order: bool = False,
    damping: float = 0.1,
    block_size: int = 128,
) -> Quantized:
    """Quantize so that the layer's output changes little: min over Ŵ of tr((W - Ŵ)·H·(W - Ŵ)ᵀ).

    Column j is rounded. The best that the columns k > j can do about its error is
    w_k ← w_k - (w_j - ŵ_j) / U_jj · U_jk, with U the upper Cholesky factor of H⁻¹. Within a block
    of columns that is done at once; all later columns are updated once per block, by one product
    of matrices. A group's scale and zero point are found when its first column is reached, from
    the weights as they are by then; their formulas are those of `quantize_groups`.

    act_order: take the columns by falling H_jj, so that those whose errors cost most are rounded
    while there are still many others to make up for them. Groups are made of columns that follow
    each other in this order (`Quantized.order`), thus of columns with inputs of like size. The
    alternative, "static groups", keeps groups of neighbours in the weight, but has to choose their
    scales before any weight is corrected.

    weight: (N, C), floating point; it is not changed. hessian: (C, C), mean x·xᵀ.
    group_size: a divisor of C, or -1. bits: 2 to 8. damping: see `inverse_factor`.
    block_size: at most so many columns in a block; it changes nothing but the time.
    About C³ + N·C² FLOPs. Raises ValueError for what `quantize_groups` and `inverse_factor` refuse.
    Source: Frantar et al. 2022, arXiv 2210.17323, algorithm 1.
    """
    check_weight(weight)
    N, C = weight.shape
    size = C if group_size == -1 else group_size
    check_group_size(size, C)
    check_hessian(hessian, C)
    W, order = weight.detach().float().clone(), None
    if act_order:
        order = hessian.diagonal().argsort(descending=True, stable=True)
        W, hessian = W[:, order], hessian[order][:, order]
    U = inverse_factor(hessian, damping)
    # Blocks and groups nest, so that a group begins where all that is known has been applied.
    block = max(n for n in range(1, block_size + 1) if n % size == 0 or size % n == 0)
    codes = torch.empty(N, C, dtype=torch.uint8, device=W.device)
    grid = []
    for start in range(0, C, block):
        stop = min(start + block, C)
        errors = W.new_zeros(N, stop - start)
        for j in range(start, stop):
            if j % size == 0:
                scale, zero = group_grid(W[:, j : j + size], bits, symmetric)
                grid.append((scale, zero))
            codes[:, j] = nearest_codes(W[:, j], scale, zero, bits)
            rounded = dequantize(codes[:, j : j + 1], scale[:, None], zero[:, None])[:, 0]
            errors[:, j - start] = (W[:, j] - rounded) / U[j, j]
            W[:, j + 1 : stop] -= torch.outer(errors[:, j - start], U[j, j + 1 : stop])
        W[:, stop:] -= errors @ U[start:stop, stop:]
    scales, zeros = (torch.stack(parts, dim=1) for parts in zip(*grid, strict=True))  # (N, G)
    return Quantized(codes, scales, zeros, bits, order)


def inverse_factor(hessian: Tensor, damping: float = 0.1) -> Tensor:
    """Upper triangular U with Uᵀ·U = (H + λ·I)⁻¹, λ = damping · mean of H's diagonal.

    Row j of U divided by U_jj tells how the later weights answer a change of weight j, the earlier
    ones being fixed. Damping keeps H invertible where there were fewer tokens than columns, and
    corrections small where correlations may be chance. The paper takes 0.01, with 262,144 tokens;
    with a few thousand, such as the course's text has, 0.1 changes outputs less on other texts. If
    H is still not positive definite for rounding errors, λ is raised tenfold, twice at most. A
    column whose inputs were always 0 (a dead one) has nothing to do with others: its diagonal is
    set to 1, and its weights are simply rounded.

    hessian: (C, C), float32. Returns (C, C), float32. About C³ FLOPs.
    Raises ValueError for a matrix that is not one of second moments.
    """
    diagonal = hessian.diagonal()
    factor: Tensor
    for attempt in range(ATTEMPTS):
        added = damping * 10**attempt * diagonal.mean()
        damped = hessian + torch.diag(torch.where(diagonal == 0, 1.0, added))
        factor, failed = torch.linalg.cholesky_ex(damped)
        del damped  # of a wide layer these matrices are the most that is in memory
        if not failed:
            factor, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(factor), upper=True)
        if not failed and bool(factor.isfinite().all()):
            return factor
    raise ValueError(
        f"the Hessian has no Cholesky factor, even with {added:g} added to its diagonal (its mean "
        f"is {diagonal.mean():g}); it must be a mean of products x·xᵀ"
    )


def check_hessian(hessian: Tensor, width: int) -> None:
    """ValueError for a Hessian of another size, or with values that no inputs can have caused."""
    if hessian.shape != (width, width):
        raise ValueError(
            f"the Hessian is {tuple(hessian.shape)}; for {width} columns ({width}, {width}) is "
            "needed"
        )
    if not bool(hessian.isfinite().all()):
        raise ValueError(
            "the Hessian holds NaN or infinite values: so did the layer's inputs on the "
            "calibration text, or their squares"
        )
    if bool((hessian.diagonal() < 0).any()):
        raise ValueError(
            f"the Hessian has {hessian.diagonal().min():g} on its diagonal; a mean of squares is "
            "at least 0"
        )
