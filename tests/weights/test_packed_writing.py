"""What is quantized here is written as GPTQ checkpoints: by words, by layers, and by families."""

import json
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from minillm.config import LayerConfig, ModelConfig
from minillm.hf_config import read_config
from minillm.kv_cache import new_cache
from minillm.model import Transformer
from minillm.quantization.int4 import Quantized, quantize_groups
from minillm.quantization.int8 import Int8Linear
from minillm.quantization.linear import QuantizedLinear, put, quantizable
from minillm.quantization.scheme import Scheme
from minillm.weights.checkpoint import Checkpoint
from minillm.weights.load import load_transformer
from minillm.weights.pack import pack_words
from minillm.weights.packed import unpack_words
from minillm.weights.save import save_model
from minillm.weights.source import open_source
from tests.parity.models import saved, token_ids
from tests.weights.packing import NAME, meaning, opened

UP = "layers.0.mlp.up_proj"


class NoTokenizer:
    def save(self, path):
        path.write_text("{}")


def one_layer(width=32, inner=64):
    """A Llama of one layer."""
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=97,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=width // 4,
        max_position_embeddings=64,
        layers=(LayerConfig(),),
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        attention_bias=True,
        attention_output_bias=True,
        mlp_bias=False,
        activation="swiglu",
    )
    return Transformer(config).requires_grad_(False).eval()


def quantize_all(model, **options):
    """Every layer rounded; in groups of a random order where act_order asks for that."""
    act_order = options.pop("act_order", False)
    for name, linear in quantizable(model).items():
        weight = linear.weight.detach()
        # As act-order does it: layers with the same inputs take these in the same order.
        generator = torch.Generator().manual_seed(weight.shape[1])
        order = torch.randperm(weight.shape[1], generator=generator) if act_order else None
        quantized = quantize_groups(weight if order is None else weight[:, order], **options)
        put(model, name, QuantizedLinear(quantized._replace(order=order), linear.bias))
    return model


def logits(model, ids):
    cache = new_cache(model.config, *ids.shape, dtype=torch.float32, device=torch.device("cpu"))
    lengths = torch.full((len(ids),), ids.shape[1])
    return model.logits(model(ids, cache, lengths=lengths))


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


FAMILIES = [
    "llama-biased",
    "llama-tied",
    "smollm3",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma3",
    "olmo2",
    "phi3",
    "phi3-partial",
    "mixtral",
    "qwen3-moe",
]


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_comes_back_from_its_files(name, act_order, tmp_path):
    source = open_source(saved(name))
    kind = source.settings["model_type"]
    model = load_transformer(read_config(source.settings), source.weights, model_type=kind)
    quantize_all(model, group_size=8, act_order=act_order)
    ids = token_ids(1, 20)
    expected = logits(model, ids)
    folder = save_model(tmp_path / "written", model, source, NoTokenizer(), None)

    again = open_source(folder)
    assert read_config(again.settings) == model.config
    assert again.settings["dtype"] == "float32"
    assert again.settings["quantization_config"]["desc_act"] is act_order
    loaded = load_transformer(model.config, again.weights, model_type=kind)
    assert not quantizable(loaded)
    found = logits(loaded, ids)
    # Within a group the columns may come in another order, and are added up in that.
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5 if act_order else 0)
    if not act_order:
        second = save_model(tmp_path / "second", loaded, again, NoTokenizer(), None)
        first = load_file(folder / "model.safetensors")
        assert all(
            torch.equal(t, first[n]) for n, t in load_file(second / "model.safetensors").items()
        )


def test_a_model_that_is_no_longer_quantized_says_so(tmp_path):
    source = open_source(saved("llama3"))
    model = load_transformer(
        read_config(source.settings), source.weights, quantize=Scheme("int4", 4, 8, True)
    )
    folder = save_model(tmp_path / "quantized", model, source, NoTokenizer(), None)
    quantized = open_source(folder)
    for name, layer in [(n, m) for n, m in model.named_modules() if isinstance(m, QuantizedLinear)]:
        plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
        plain.weight = nn.Parameter(layer.quantized.dequantize(), requires_grad=False)
        put(model, name, plain)
    plain_folder = save_model(tmp_path / "plain", model, quantized, NoTokenizer(), None)
    assert "quantization_config" in json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in json.loads((plain_folder / "config.json").read_text())
    shutil.rmtree(folder)


def refused(model, said, model_type="llama"):
    with pytest.raises(ValueError, match=said):
        dict(Checkpoint(model, model_type))


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


def test_fused_layers_share_their_order(tmp_path):
    source = open_source(saved("phi3"))
    model = load_transformer(read_config(source.settings), source.weights, model_type="phi3")
    quantize_all(model, group_size=8, act_order=True)
    layer = model.get_submodule("layers.0.self_attn.k_proj")
    assert isinstance(layer, QuantizedLinear)
    assert layer.order is not None
    layer.order = layer.order.flip(0)
    said = r"qkv_proj\.qweight holds 3 layers, which must share .* that order"
    refused(model, said, "phi3")
    with pytest.raises(ValueError, match=said):
        save_model(tmp_path / "folder", model, source, NoTokenizer(), None)
    assert not any(tmp_path.iterdir())
    layer.order = None
    refused(model, said, "phi3")
