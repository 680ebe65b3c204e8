"""NF4: four bits whose 16 values lie where normally distributed weights lie."""

import torch
from torch import Tensor

from minillm.quantization.int4 import split_groups, stored_scales


def nf4_levels() -> Tensor:
    """The 16 values of NF4, from -1 to 1: quantiles of a normal distribution, divided by the last.

    Between two quantiles at equal steps of probability there are equally many weights. One series
    of 8 goes up to 0.5 and one of 9 from there, so that 0.0, which both have, is itself a value.
    They end half a step before probability 0 and 1, where the quantile is infinite; half a step is
    1/32 for 16 values and 1/30 for 15, of which this takes the mean.

    Returns (16,), float32, ascending.
    Source: Dettmers et al. 2023, arXiv 2305.14314, section 3 and appendix E.
    """
    edge = (1 / 30 + 1 / 32) / 2
    below = torch.linspace(edge, 0.5, 8, dtype=torch.float64)[:-1]
    above = torch.linspace(0.5, 1 - edge, 9, dtype=torch.float64)
    levels: Tensor = torch.special.ndtri(torch.cat([below, above]))  # the inverse of the normal CDF
    return (levels / levels[-1]).float()


def nf4_round(weight: Tensor, group_size: int = 64) -> Tensor:
    """Each weight replaced by the nearest of scale · `nf4_levels`, scale = max |w| of its group.

    Only the values are made, not the codes: it is here to be compared with `quantize_groups`.
    Stored, it would take 4 + 16/group_size bits per weight, the scale being float16.

    weight: (N, C), floating point. group_size: a divisor of C, or -1 for the whole row.
    Returns (N, C), float32. Raises ValueError for what `quantize_groups` refuses.
    """
    groups = split_groups(weight, group_size)  # (N, G, group_size)
    scales = stored_scales(groups.abs().amax(dim=-1, keepdim=True)).float()
    levels = nf4_levels().to(weight.device)
    codes = torch.bucketize(groups / scales, (levels[:-1] + levels[1:]) / 2)
    return (levels[codes] * scales).flatten(1)
