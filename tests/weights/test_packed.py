"""Packed weights are read as the GPTQ and AWQ formats define them."""

import numpy as np
import pytest
import torch

from minillm.weights.packed import unpack_words
from tests.weights.packing import AWQ, GPTQ, meaning, opened, random_parts


def as_int32(word):
    return torch.tensor(word).to(torch.int64).sub(2**32 * (word >> 31)).int()


def one_word_layer(code, stored_zero, bits=4):
    """Every code the same, every stored zero point the same, scale 0.5: 32 inputs, 8 outputs."""
    ones = 0xFFFFFFFF // (2**bits - 1)
    return {
        "qweight": as_int32(code * ones).expand(bits, 8).contiguous(),
        "qzeros": as_int32(stored_zero * ones).expand(1, 8 * bits // 32).contiguous(),
        "scales": torch.full((1, 8), 0.5, dtype=torch.float16),
    }


@pytest.mark.parametrize(
    ("version", "stored", "value"),
    [
        ("gptq", 7, 0.0),
        ("gptq_v2", 8, 0.0),
        ("gptq", 8, -0.5),  # data of the second version, read as the first
        ("gptq_v2", 7, 0.5),
        ("gptq", 15, 4.0),  # a zero point of 0, less 1
        ("gptq_v2", 0, 4.0),
    ],
)
@pytest.mark.parametrize("key", ["checkpoint_format", "format"])
def test_q01_zero_points_of_both_versions(version, stored, value, key, tmp_path):
    layer = opened(tmp_path, one_word_layer(8, stored), GPTQ | {key: version})
    assert layer.shape == (8, 32)
    assert torch.equal(layer.quantized("cpu").dequantize(), torch.full((8, 32), value))


def test_q01_no_version_is_the_first(tmp_path):
    layer = opened(tmp_path, one_word_layer(8, 7), GPTQ)
    assert torch.equal(layer.quantized("cpu").dequantize(), torch.zeros(8, 32))


def test_q01_eight_bits(tmp_path):
    config = GPTQ | {"bits": 8}
    for stored, zero in ((127, 128), (255, 0), (0, 1)):
        layer = opened(tmp_path, one_word_layer(200, stored, bits=8), config)
        assert torch.equal(
            layer.quantized("cpu").dequantize(), torch.full((8, 32), (200 - zero) / 2)
        )


def test_q01_symmetric_zero_points_in_a_file_of_the_wrong_name(tmp_path):
    """Said to be symmetric, so the zero point is 8: stored as 7 or, in some `gptq` files, as 8."""
    for stored in (7, 8):
        layer = opened(tmp_path, one_word_layer(8, stored), GPTQ | {"sym": True})
        assert torch.equal(layer.quantized("cpu").dequantize(), torch.zeros(8, 32))


def test_a_zero_point_that_borrowed_from_its_neighbour(tmp_path):
    """GPTQModel takes 1 from eight zero points at once, as from one number of 32 bits."""
    zeros = [0, 8, 8, 0, 0, 3, 15, 8]
    word = (sum(zero << 4 * i for i, zero in enumerate(zeros)) - 0x11111111) % 2**32
    parts = one_word_layer(8, 7) | {"qzeros": as_int32(word).view(1, 1)}
    by_gptqmodel = GPTQ | {"meta": {"quantizer": ["gptqmodel:7.7.0"]}}
    assert opened(tmp_path, parts, by_gptqmodel).quantized("cpu").zeros.tolist() == [
        [z] for z in zeros
    ]
    word = sum((zero - 1) % 16 << 4 * i for i, zero in enumerate(zeros))
    parts["qzeros"] = as_int32(word).view(1, 1)
    assert opened(tmp_path, parts, GPTQ).quantized("cpu").zeros.tolist() == [[z] for z in zeros]


def test_q03_awq_order(tmp_path):
    """The word 0x75316420 holds the codes 0 to 7 of outputs 0 to 7."""
    word = as_int32(0x75316420)
    parts = {
        "qweight": word.expand(32, 1).contiguous(),
        "qzeros": torch.zeros(1, 1, dtype=torch.int32),
        "scales": torch.ones(1, 8, dtype=torch.float16),
    }
    columns = torch.arange(8.0)[:, None].expand(8, 32)
    assert torch.equal(opened(tmp_path, parts, AWQ).quantized("cpu").dequantize(), columns)
    parts |= {"qweight": torch.zeros(32, 1, dtype=torch.int32), "qzeros": word.view(1, 1)}
    found = opened(tmp_path, parts, AWQ).quantized("cpu")
    assert found.zeros.tolist() == [[n] for n in range(8)]  # the same order, and nothing added
    assert torch.equal(found.dequantize(), -columns)


def test_words_from_the_lowest_bits():
    words = torch.tensor([[0x76543210, as_int32(0xFEDCBA98)]], dtype=torch.int32)
    assert unpack_words(words, 4).tolist() == [list(range(16))]
    octets = [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]
    assert unpack_words(words, 8).tolist() == [octets]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [-1, 8, 32])
@pytest.mark.parametrize(
    ("config", "offset"),
    [
        (GPTQ, 1),
        (GPTQ | {"checkpoint_format": "gptq_v2"}, 0),
        (GPTQ | {"bits": 8}, 1),
        (GPTQ | {"bits": 8, "checkpoint_format": "gptq_v2"}, 0),
        (AWQ, 0),
    ],
    ids=["gptq", "gptq-v2", "gptq-8", "gptq-8-v2", "awq"],
)
def test_random_words_mean_what_the_format_says(config, offset, size, dtype, tmp_path):
    config = config | {"group_size": size}
    parts = random_parts(config, N=24, C=64, dtype=dtype)
    layer = opened(tmp_path, parts, config)
    assert layer.shape == (24, 64)
    assert layer.is_floating_point()
    found = layer.quantized("cpu")
    assert found.order is None
    assert found.bits == config["bits"]
    expected = meaning(parts, config, offset)
    assert torch.equal(found.dequantize(), expected)
    half = layer.to(device="cpu", dtype=torch.bfloat16)
    assert torch.equal(half, expected.bfloat16())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("desc_act", [False, True])
def test_groups_in_any_order(bits, desc_act, tmp_path):
    """Act-order mixes the groups; g_idx counts whatever `desc_act` says."""
    config = GPTQ | {"bits": bits, "group_size": 16, "desc_act": desc_act}
    for seed in range(5):
        parts = random_parts(config, N=16, C=96, seed=seed, mixed=True)
        found = opened(tmp_path, parts, config).quantized("cpu")
        assert found.order is not None
        assert sorted(found.order.tolist()) == list(range(96))
        assert torch.equal(found.dequantize(), meaning(parts, config, offset=1))


def test_groups_in_their_own_order_need_no_sorting(tmp_path):
    parts = random_parts(GPTQ, N=16, C=96)
    parts["g_idx"] = (torch.arange(96) // 32).int()
    assert opened(tmp_path, parts, GPTQ | {"desc_act": True}).quantized("cpu").order is None


def test_one_group_is_in_order_whatever_is_said(tmp_path):
    config = GPTQ | {"group_size": -1, "desc_act": True}
    parts = random_parts(config, N=16, C=32)
    assert opened(tmp_path, parts, config).quantized("cpu").order is None


@pytest.mark.parametrize("value", [1e-30, 3e38])
def test_scales_that_float16_cannot_hold_stay_as_they_are(value, tmp_path):
    for dtype in (torch.bfloat16, torch.float32):
        parts = random_parts(GPTQ, N=8, C=32, dtype=dtype)
        parts["scales"][0, 3] = value
        found = opened(tmp_path, parts, GPTQ).quantized("cpu")
        assert found.scales.dtype == dtype
        assert torch.equal(found.scales, parts["scales"].t())


def test_scales_that_float16_holds_take_its_room(tmp_path):
    parts = random_parts(GPTQ, N=8, C=32)
    for dtype in (torch.float16, torch.float32):
        parts["scales"] = parts["scales"].to(dtype)
        assert opened(tmp_path, parts, GPTQ).quantized("cpu").scales.dtype == torch.float16


def test_layers_of_other_bits_and_groups_in_one_file(tmp_path):
    """`dynamic` of GPTQModel: what a layer has shows in the shapes of its tensors."""
    dynamic = GPTQ | {"dynamic": {"+:.*up_proj.*": {"bits": 8, "group_size": 16}}}
    other = GPTQ | {"bits": 8, "group_size": 16}
    parts = random_parts(other, N=16, C=64)
    found = opened(tmp_path, parts, dynamic).quantized("cpu")
    assert (found.bits, found.group_size) == (8, 16)
    assert torch.equal(found.dequantize(), meaning(parts, other, offset=1))


def test_the_oracle_sees_differences():
    """Each mistake that the reader could make changes what the oracle expects."""
    gptq, awq = random_parts(GPTQ, N=16, C=64), random_parts(AWQ, N=16, C=64)
    right = meaning(gptq, GPTQ, offset=1)
    assert not torch.equal(right, meaning(gptq, GPTQ, offset=0))
    g_idx = torch.tensor(np.random.default_rng(0).permutation(np.arange(64) // 32))
    assert not torch.equal(right, meaning(gptq | {"g_idx": g_idx}, GPTQ, offset=1))
    linear = meaning(awq, AWQ).view(2, 8, 64)[:, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(16, 64)
    assert not torch.equal(linear, meaning(awq, AWQ))
