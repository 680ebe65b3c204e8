"""What is quantized here is written as GPTQ checkpoints: words, layers, settings, refusals."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from minillm.hf_quantization import read_packing
from minillm.quantization.int4 import Quantized, quantize_groups
from minillm.quantization.int8 import Int8Linear
from minillm.quantization.linear import QuantizedLinear, put, quantizable
from minillm.weights.checkpoint import Checkpoint
from minillm.weights.load import load_transformer
from minillm.weights.pack import pack_words
from minillm.weights.packed import packed_weights, unpack_words
from minillm.weights.safetensors import open_tensors
from tests.parity.models import token_ids
from tests.weights.packing import NAME, meaning, opened
from tests.weights.quantized_models import logits, one_layer, quantize_all

UP = "layers.0.mlp.up_proj"


@given(data=st.data())
def test_packing_is_exact(data):
    bits = data.draw(st.sampled_from([4, 8]))
    rows, words = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    codes = st.lists(
        st.integers(0, 2**bits - 1), min_size=32 // bits * words, max_size=32 // bits * words
    )
    given_codes = torch.tensor([data.draw(codes) for _ in range(rows)], dtype=torch.uint8)
    packed = pack_words(given_codes, bits)
    assert packed.dtype == torch.int32
    assert packed.shape == (rows, words)
    assert torch.equal(unpack_words(packed, bits), given_codes)
    for row, expected in zip(packed.tolist(), given_codes.tolist(), strict=True):
        number = sum((word & 0xFFFFFFFF) << 32 * i for i, word in enumerate(row))
        assert number == sum(code << bits * i for i, code in enumerate(expected))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_layer_comes_back_from_its_file(data, tmp_path_factory):
    bits, size = data.draw(st.sampled_from([(4, -1), (4, 32), (4, 64), (8, -1), (8, 32), (8, 64)]))
    N, C = 8 * data.draw(st.integers(1, 4)), 64 * data.draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    groups = 1 if size == -1 else C // size
    weight = Quantized(
        torch.randint(0, 2**bits, (N, C), generator=generator, dtype=torch.uint8),
        torch.randn(N, groups, generator=generator).half(),
        torch.randint(0, 2**bits, (N, groups), generator=generator, dtype=torch.uint8),
        bits,
        torch.randperm(C, generator=generator) if data.draw(st.booleans()) else None,
    )
    model = one_layer()
    for name in quantizable(model):
        put(model, name, QuantizedLinear(weight))
    written = Checkpoint(model, "llama")
    parts = {part: written[f"{NAME}.{part}"] for part in ("qweight", "qzeros", "scales", "g_idx")}
    config = written.quantization_config
    assert config is not None
    offset = 1 if config["checkpoint_format"] == "gptq" else 0
    expected = weight.dequantize()
    assert torch.equal(meaning(parts, config, offset), expected)  # by the loops of the oracle
    found = opened(tmp_path_factory.mktemp("layer"), parts, config).quantized("cpu")
    assert torch.equal(found.dequantize(), expected)
    if weight.order is None:
        assert all(torch.equal(a, b) for a, b in zip(found[:3], weight[:3], strict=True))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"group_size": 32, "symmetric": True},
            {
                "bits": 4,
                "group_size": 32,
                "sym": True,
                "desc_act": False,
                "checkpoint_format": "gptq",
            },
        ),
        (
            {"group_size": 16, "symmetric": False, "act_order": True},
            {
                "bits": 4,
                "group_size": 16,
                "sym": False,
                "desc_act": True,
                "checkpoint_format": "gptq_v2",
            },
        ),
        (
            {"group_size": -1, "bits": 8, "symmetric": True},
            {
                "bits": 8,
                "group_size": -1,
                "sym": True,
                "desc_act": False,
                "checkpoint_format": "gptq",
            },
        ),
        (
            {"group_size": 64, "symmetric": True},  # the layers of 32 inputs have one group of 32
            {
                "bits": 4,
                "group_size": 64,
                "sym": True,
                "desc_act": False,
                "checkpoint_format": "gptq",
            },
        ),
    ],
)
def test_what_config_json_says(options, expected):
    model = one_layer(inner=128)
    if options["group_size"] == 64:
        for name, linear in quantizable(model).items():
            size = min(64, linear.in_features)
            weight = quantize_groups(linear.weight, size, symmetric=True)
            put(model, name, QuantizedLinear(weight, linear.bias))
    else:
        quantize_all(model, **options)
    config = Checkpoint(model, "llama").quantization_config
    assert config is not None
    assert config | expected == config
    assert config["quant_method"] == "gptq"
    assert config["lm_head"] is False


def test_q01_stored_zero_points():
    """Symmetric: 8, stored as 7. Asymmetric, a zero point of 0 among them: as they are."""
    symmetric = Checkpoint(quantize_all(one_layer(), group_size=32, symmetric=True), "llama")
    assert set(symmetric[f"{NAME}.qzeros"].flatten().tolist()) == {0x77777777}
    model = one_layer()
    model.get_submodule(UP).weight.abs_()
    positive = Checkpoint(quantize_all(model, group_size=32), "llama")
    assert set(positive[f"{NAME}.qzeros"].flatten().tolist()) == {0}


def test_names_shapes_and_types():
    written = Checkpoint(quantize_all(one_layer(), group_size=32), "llama")
    forms = {
        n: (str(t.dtype)[6:], tuple(t.shape)) for n, t in written.items() if n.startswith(NAME)
    }
    assert forms == {
        f"{NAME}.qweight": ("int32", (4, 64)),
        f"{NAME}.qzeros": ("int32", (1, 8)),
        f"{NAME}.scales": ("float16", (1, 64)),
        f"{NAME}.g_idx": ("int32", (32,)),
    }
    plain = Checkpoint(one_layer(), "llama")
    parts = {"qweight", "qzeros", "scales", "g_idx"}
    others = {name for name in written if name.rpartition(".")[2] not in parts}
    linears = {f"model.{name}.weight" for name in quantizable(one_layer())}
    assert others == set(plain) - linears
    assert "model.layers.0.self_attn.q_proj.bias" in others


def refused(model, said):
    with pytest.raises(ValueError, match=said):
        dict(Checkpoint(model, "llama"))


def test_what_the_format_cannot_hold():
    for bits in (2, 3, 5):
        refused(
            quantize_all(one_layer(), group_size=32, bits=bits),
            f"the layers have {bits} bits; .* 4 or 8",
        )
    mixed = quantize_all(one_layer(), group_size=32)
    up = mixed.get_submodule(UP)
    put(mixed, UP, QuantizedLinear(quantize_groups(up.quantized.dequantize(), 32, bits=8)))
    refused(mixed, "the layers have 4, 8 bits")
    put(mixed, UP, QuantizedLinear(quantize_groups(up.quantized.dequantize(), 16)))
    refused(mixed, "groups of 16, 32 inputs")
    put(mixed, UP, nn.Linear(32, 64, bias=False))
    refused(mixed, "layers.0.mlp.up_proj is not quantized, others are")
    put(mixed, UP, Int8Linear(torch.randn(64, 32)))
    refused(mixed, "layers.0.mlp.up_proj is a Int8Linear, for which there is no file format")
    refused(
        quantize_all(one_layer(inner=60), group_size=-1), "32 inputs and 60 outputs; .* 8 of either"
    )


def test_a_head_that_is_quantized(tmp_path):
    """Ours never is, but some tools do it where they are told to."""
    model = quantize_all(one_layer(), group_size=32)
    assert isinstance(model.lm_head, nn.Linear)
    put(model, "lm_head", QuantizedLinear(quantize_groups(model.lm_head.weight, 32)))
    written = Checkpoint(model, "llama")
    config = written.quantization_config
    assert config is not None
    assert config["lm_head"] is True
    save_file(dict(written), tmp_path / "model.safetensors")
    packing = read_packing({"quantization_config": config})
    loaded = load_transformer(model.config, packed_weights(open_tensors(tmp_path), packing))
    assert isinstance(loaded.lm_head, QuantizedLinear)
    ids = token_ids(1, 20)
    assert torch.equal(logits(loaded, ids), logits(model, ids))
