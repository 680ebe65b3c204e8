"""The exercises of notebook 08: what their checks say of answers that nobody foresaw."""

import importlib.util
import math
import os
import subprocess
import sys
from functools import partial

import pytest
import torch

from minillm.course import check
from minillm.course.checks import kernels08
from minillm.course.checks.kit import Value
from minillm.course.checks.nb08 import EXERCISES
from minillm.layers import norm

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)
CASE = (*kernels08.rows(2, 24, 1.0, 0), 1e-5)


@pytest.mark.parametrize(("rows", "width", "size"), [(2, 24, 1.0), (1, 32, 300.0)])
def test_the_right_norm_is_that_of_the_layers(rows, width, size):
    x, residual, weight = kernels08.rows(rows, width, size, seed=3)
    found = kernels08.run_add_norm(kernels08.add_norm, x, residual, weight, 1e-5)
    total = x + residual
    assert torch.equal(found["sum"], total.float())
    torch.testing.assert_close(
        found["out"], norm.rms_norm(total, weight, 1e-5).float(), rtol=2e-3, atol=1e-4
    )


@pytest.mark.parametrize(("N", "C", "group"), [(3, 24, 8), (1, 20, 4)])
def test_the_right_product_is_that_of_the_weights(N, C, group):
    x, codes, scales, zeros = kernels08.weights(N, C, group, seed=3)
    found = kernels08.run_int4_dot(kernels08.int4_dot, x, codes, scales, zeros, group)
    columns = torch.arange(C) // group
    weight = (codes.double() - zeros[:, columns]) * scales[:, columns]
    torch.testing.assert_close(found.double(), weight @ x.double(), rtol=1e-5, atol=1e-4)


@needs_triton
def test_a_kernel_that_is_decorated_already_passes_its_check():
    from minillm.course.triton_here import triton

    assert check("08.int4_dot", triton.jit(kernels08.int4_dot)).passed


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU")
def test_where_triton_was_imported_for_compilation_the_stand_in_runs_the_exercises():
    program = (
        "import triton.language\n"
        "from minillm.course import check\n"
        "from minillm.course.checks import kernels08\n"
        "from minillm.course.triton_here import HOW\n"
        "print(HOW, check('08.int4_dot', kernels08.int4_dot).status)"
    )
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True)
    assert done.stdout.decode().startswith("a stand-in for Triton"), done.stderr.decode()
    assert done.stdout.decode().split()[-1] == "passed"


def test_a_stub_of_a_kernel_is_not_attempted():
    def my_kernel(x_ptr):
        raise NotImplementedError

    assert check("08.add_norm", my_kernel).status == "not attempted"


def test_a_kernel_that_writes_where_it_should_not_ends_with_a_diagnosis():
    """And not with the process: under Triton's interpreter a stray store hits the heap."""
    from minillm.course.triton_here import tl

    def my_kernel(x_ptr, r_ptr, w_ptr, out_ptr, sum_ptr, C, eps, BLOCK: tl.constexpr):
        place = tl.program_id(0) * C + tl.arange(0, BLOCK)
        total = tl.load(x_ptr + place) + tl.load(r_ptr + place)
        tl.store(out_ptr + place, total)
        tl.store(sum_ptr + place + 1000, total)

    for answer in (my_kernel, lambda *_, **__: None):
        assert check("08.add_norm", answer).status == "wrong"


@pytest.mark.parametrize("fault", [10, 12])
def test_stray_stores_are_counted(fault):
    found = kernels08.run_add_norm(partial(kernels08.add_norm, FAULT=fault), *CASE)
    right = kernels08.run_add_norm(kernels08.add_norm, *CASE)
    assert found["written beyond a tensor"] > right["written beyond a tensor"] == 0


@pytest.mark.parametrize("answer", ["CFAEBD", "c, f, a, e, b, d", list("CFAEBD")])
def test_letters_may_be_written_in_several_ways(answer):
    assert check("08.knobs", answer).passed


@pytest.mark.parametrize(
    ("answer", "where"), [("CFAEAA", "[5]"), ("ABCDEFA", "[1]"), (3, "3 (int)"), ("", "[1]")]
)
def test_of_other_letters_the_symptom_is_named(answer, where):
    result = check("08.knobs", answer)
    assert result.status == "wrong"
    assert where in [value for _, value in result.details]


@pytest.mark.parametrize("exercise", ["08.stop", "08.captured"])
@pytest.mark.parametrize("given", [None, 3, "abc", torch.ones(2, 3), [math.nan], object()])
def test_whatever_a_method_returns_there_is_a_diagnosis(exercise, given):
    class Mine:
        def __init__(self, *_):
            pass

        def push(self, *_):
            return given

        flush = __call__ = push

    result = check(exercise, Mine)
    assert result.status == "wrong"
    assert "index" in dict(result.details)
    assert ("`return` missing" in result.message) == (given is None)


def test_six_exercises_as_specified():
    assert list(EXERCISES) == [
        "08.lower_bound",
        "08.knobs",
        "08.add_norm",
        "08.stop",
        "08.int4_dot",
        "08.captured",
    ]
    by_hand = EXERCISES["08.lower_bound"]
    assert isinstance(by_hand, Value)
    assert by_hand.right == pytest.approx((7.81, 15.33), abs=0.01)
