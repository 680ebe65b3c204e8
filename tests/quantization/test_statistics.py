"""Statistics of a layer's inputs, against what numpy makes of all inputs at once in float64."""

import numpy as np
import pytest
import torch

from minillm.quantization.statistics import CHUNK, Statistics, output_error


def inputs(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    channels = torch.logspace(-2, 2, shape[-1])
    return (torch.randn(*shape, generator=generator) * channels).to(dtype)


def gathered(*parts: torch.Tensor) -> Statistics:
    statistics = Statistics(parts[0].shape[-1])
    for part in parts:
        statistics.add(part)
    return statistics


def assert_describes(statistics: Statistics, x: torch.Tensor) -> None:
    rows = x.double().numpy().reshape(-1, x.shape[-1])
    expected = rows.T @ rows / len(rows)
    bound = 1e-5 * np.sqrt(np.outer(expected.diagonal(), expected.diagonal()))
    assert (np.abs(statistics.hessian.numpy() - expected) <= bound).all()
    np.testing.assert_allclose(statistics.mean_abs, np.abs(rows).mean(axis=0), rtol=1e-5)
    assert statistics.tokens == len(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_means_of_all_tokens(dtype):
    x = inputs(3, 50, 12, dtype=dtype)
    assert_describes(gathered(x), x)


@pytest.mark.parametrize("size", [1, 7, CHUNK, 5 * CHUNK])
def test_parts_of_any_size_give_the_whole(size):
    x = inputs(2 * CHUNK + 3, 8)
    assert_describes(gathered(*x.split(size)), x)


def test_order_does_not_matter():
    x = inputs(900, 8)
    forwards, backwards = gathered(*x.split(100)), gathered(*x.flip(0).split(300))
    assert forwards.tokens == backwards.tokens
    torch.testing.assert_close(forwards.hessian, backwards.hessian)
    torch.testing.assert_close(forwards.mean_abs, backwards.mean_abs)


def test_nothing_is_no_token():
    x = inputs(5, 4)
    assert_describes(gathered(x, torch.empty(0, 4), torch.empty(2, 0, 4)), x)
    assert gathered(torch.empty(0, 4)).hessian.isfinite().all()


def test_large_inputs_do_not_overflow():
    # The sum of these squares is 4e38, beyond float32; their mean is not.
    x = torch.full((4, 2), 1e19)
    torch.testing.assert_close(gathered(x).hessian, torch.full((2, 2), 1e38))


def test_a_channel_that_is_never_used_stays_exactly_zero():
    x = inputs(40, 6)
    x[:, 2] = 0
    found = gathered(*x.split(9))
    assert not found.hessian[2].any()
    assert not found.hessian[:, 2].any()


def test_another_width_is_refused():
    with pytest.raises(ValueError, match="inputs of 5 values, for a layer that takes 4"):
        Statistics(4).add(torch.zeros(3, 5))


def test_output_error_is_the_mean_squared_difference_of_outputs():
    x, change = inputs(300, 12), inputs(7, 12, seed=1)
    expected = (x.double() @ change.double().T).square().mean().item()
    assert output_error(change, gathered(x).hessian) == pytest.approx(expected, rel=1e-4)


def test_output_error_by_hand():
    # Inputs (1, 0) and (1, 2): the outputs change by 3 and by 3 - 2 = 1, mean square 5.
    statistics = gathered(torch.tensor([[1.0, 0.0], [1.0, 2.0]]))
    torch.testing.assert_close(statistics.hessian, torch.tensor([[1.0, 1.0], [1.0, 2.0]]))
    assert output_error(torch.tensor([[3.0, -1.0]]), statistics.hessian) == pytest.approx(5)
