"""What GPTQ refuses: each message says what is wrong and what is needed."""

import pytest
import torch

from minillm.quantization.gptq import gptq


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda h: h * torch.nan, "NaN or infinite"),
        (lambda h: h / 0, "NaN or infinite"),
        (lambda h: -h, "on its diagonal; a mean of squares is at least 0"),
        (lambda h: h - 2 * torch.ones_like(h) + 2 * torch.eye(32), "no Cholesky factor"),
        (lambda h: h[:, :5], r"\(32, 5\); for 32 columns \(32, 32\)"),
    ],
)
def test_a_matrix_that_is_no_hessian_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        gptq(torch.ones(4, 32), changed(torch.eye(32) + 1), 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_size": 12}, "group_size is 12, which does not divide the width of 32"),
        ({"group_size": 0}, "group_size is 0"),
        ({"group_size": 8, "bits": 9}, "bits is 9"),
        ({"group_size": 8, "bits": 1}, "bits is 1"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        gptq(torch.ones(4, 32), torch.eye(32), **options)


def test_a_weight_that_is_not_finite_is_refused():
    weight = torch.ones(4, 32)
    weight[2, 7] = torch.inf
    with pytest.raises(ValueError, match=r"weight at \[2, 7\] is inf"):
        gptq(weight, torch.eye(32), 8)
