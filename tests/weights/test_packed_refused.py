"""Quantized checkpoints that cannot be read are refused by name, before anything is unpacked."""

import json
import re

import pytest
import torch
from safetensors.torch import save_file

from minillm.hf_config import read_config
from minillm.weights.packed import PackedTensor, packed_weights
from minillm.weights.safetensors import open_tensors
from minillm.weights.source import open_source
from tests.weights.packing import AWQ, GPTQ, NAME, opened, random_parts

SETTINGS = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
AUTO_ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True}


@pytest.mark.parametrize(
    "config",
    [
        GPTQ,
        GPTQ | {"bits": 8, "group_size": -1, "checkpoint_format": "gptq_v2", "desc_act": True},
        GPTQ | {"format": "GPTQ", "checkpoint_format": "gptq", "pack_dtype": "int32"},
        {"quant_method": "gptq", "bits": 4},  # groups of 128, as in transformers
        AWQ,
        AWQ | {"version": "GEMM", "modules_to_not_convert": None, "backend": "autoawq"},
        AWQ | {"version": None, "format": "gemm", "checkpoint_format": "gemm"},
        AUTO_ROUND | {"packing_format": "auto_round:auto_gptq", "data_type": "int"},
        AUTO_ROUND | {"packing_format": "auto_round:auto_awq", "act_bits": 16},
        AUTO_ROUND | {"packing_format": "auto_round"},
        None,
    ],
)
def test_a_model_is_the_same_however_its_weights_are_packed(config):
    assert read_config(SETTINGS | {"quantization_config": config}) == read_config(SETTINGS)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("gptq", " is 'gptq'; an object is needed"),
        ({}, "quant_method is None; supported are gptq and awq"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method is 'bitsandbytes'"),
        ({"quant_method": "compressed-tensors"}, "quant_method is 'compressed-tensors'"),
        ({"quant_method": "fp8"}, "quant_method is 'fp8'"),
        ({"quant_method": ["gptq"]}, "quant_method is ['gptq']"),
        (GPTQ | {"bits": 2}, "bits is 2; supported are 4 and 8"),
        (GPTQ | {"bits": 3}, "bits is 3; supported are 4 and 8"),
        (GPTQ | {"bits": "4"}, "bits is '4'"),
        (GPTQ | {"bits": 4.0}, "bits is 4.0"),
        (GPTQ | {"bits": None}, "bits is None"),
        (GPTQ | {"group_size": 0}, "group_size is 0; a positive whole number or -1 is needed"),
        (GPTQ | {"group_size": -2}, "group_size is -2"),
        (GPTQ | {"group_size": True}, "group_size is True"),
        (GPTQ | {"group_size": 32.0}, "group_size is 32.0"),
        (GPTQ | {"sym": "yes"}, "sym is 'yes'; true or false is needed"),
        (GPTQ | {"desc_act": "false"}, "desc_act is 'false'; true or false is needed"),
        (GPTQ | {"checkpoint_format": "marlin"}, "'marlin'; supported is gptq and gptq_v2"),
        (GPTQ | {"checkpoint_format": "gptq_p"}, "'gptq_p'"),
        (GPTQ | {"checkpoint_format": "gptq", "format": "gptq_v2"}, "'gptq, gptq_v2'"),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format is true"),
        (GPTQ | {"pack_dtype": "int16"}, "pack_dtype is 'int16'; supported is int32"),
        (AWQ | {"version": "gemv"}, "'gemv'; supported is gemm"),
        (AWQ | {"version": "gemv_fast"}, "'gemv_fast'; supported is gemm"),
        (AWQ | {"version": "marlin"}, "'marlin'; supported is gemm"),
        (AWQ | {"version": None, "backend": "llm-awq"}, "backend is 'llm-awq'"),
        (AWQ | {"bits": 3}, "bits is 3"),
        (AUTO_ROUND | {"packing_format": "auto_round:fp8"}, "packing_format is 'auto_round:fp8'"),
        (AUTO_ROUND | {"packing_format": "auto_round:mlx"}, "packing_format is 'auto_round:mlx'"),
        (AUTO_ROUND | {"act_bits": 8}, "act_bits of auto-round is 8"),
        (AUTO_ROUND | {"data_type": "mx_fp4"}, "data_type of auto-round is 'mx_fp4'"),
        (AUTO_ROUND | {"rotation_config": {"x": 1}}, "rotation_config"),
    ],
)
def test_what_is_not_read_is_refused_by_name(config, said):
    with pytest.raises(ValueError, match=f"^quantization_config.*{re.escape(said)}"):
        read_config(SETTINGS | {"quantization_config": config})


def test_a_message_of_a_long_value_is_short():
    with pytest.raises(ValueError, match="'xxx") as caught:
        read_config(SETTINGS | {"quantization_config": GPTQ | {"checkpoint_format": "x" * 10**6}})
    assert len(str(caught.value)) < 1000


def floats(*shape):
    return torch.ones(*shape, dtype=torch.float16)


@pytest.mark.parametrize("config", [GPTQ, AWQ], ids=["gptq", "awq"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"qweight": None}, "{}.qweight is missing"),
        ({"qzeros": None}, "{}.qzeros is missing"),
        ({"scales": None}, "{}.scales is missing"),
        ({"qweight": torch.zeros(8, 8, dtype=torch.int64)}, "{}.qweight is torch.int64; int32"),
        ({"qweight": floats(8, 8)}, "{}.qweight is torch.float16; int32"),
        ({"qzeros": torch.zeros(2, 2, dtype=torch.uint8)}, "{}.qzeros is torch.uint8; int32"),
        ({"scales": torch.zeros(2, 16, dtype=torch.int32)}, "{}.scales is torch.int32; float16"),
        ({"scales": torch.zeros(2, 16, dtype=torch.float64)}, "{}.scales is torch.float64"),
        ({"qweight": torch.zeros(64, dtype=torch.int32)}, "{}.qweight has the shape (64,)"),
        ({"scales": floats(2, 16, 1)}, "{}.scales has the shape (2, 16, 1)"),
        ({"scales": floats(0, 16)}, "{}.scales has the shape (0, 16)"),
        ({"scales": floats(2, 20)}, "{}.qzeros has 2 words for 20 outputs"),
        ({"scales": floats(2, 12)}, "{}.qzeros has 2 words for 12 outputs; 4 bits are supported"),
        ({"scales": floats(4, 16)}, "the shapes do not fit each other"),
        ({"qzeros": torch.zeros(3, 2, dtype=torch.int32)}, "the shapes do not fit each other"),
        ({"scales": floats(2, 8), "qzeros": torch.zeros(2, 1, dtype=torch.int32)}, "do not fit"),
        (
            {"scales": floats(4, 16), "qzeros": torch.zeros(4, 2, dtype=torch.int32)},
            "{}.scales has 4 groups for 64 inputs, group_size is 32",
        ),
        (
            {"scales": floats(3, 16), "qzeros": torch.zeros(3, 2, dtype=torch.int32)},
            "{}.scales has 3 groups for 64 inputs",
        ),
        ({"weight": floats(16, 64)}, "{}.weight stands there, and {}."),
        ({"g_idx": torch.zeros(63, dtype=torch.int32)}, "{}.g_idx has 63 entries for 64 inputs"),
        ({"g_idx": torch.zeros(64, dtype=torch.int64)}, "{}.g_idx is torch.int64; int32"),
    ],
)
def test_tensors_that_do_not_fit(config, change, said, tmp_path):
    parts = {k: v for k, v in (random_parts(config, 16, 64) | change).items() if v is not None}
    with pytest.raises(ValueError, match=re.escape(said.replace("{}", NAME))):
        opened(tmp_path, parts, config)


def test_groups_that_do_not_divide_the_inputs(tmp_path):
    """Some tools leave a smaller group at the end; 96 inputs in groups of 64."""
    config = GPTQ | {"group_size": 64}
    parts = random_parts(GPTQ | {"group_size": 48}, 16, 96)
    with pytest.raises(ValueError, match=r"2 groups for 96 inputs, group_size is 64; only groups"):
        opened(tmp_path, parts, config)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_scales_that_are_not_finite(value, tmp_path):
    parts = random_parts(GPTQ, 16, 64)
    parts["scales"][1, 5] = value
    with pytest.raises(ValueError, match=rf"{NAME}\.scales has values that are not finite"):
        opened(tmp_path, parts, GPTQ).quantized("cpu")


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([-1] + [0] * 31 + [1] * 32, "from -1 to 1; there are 2 groups"),
        ([0] * 32 + [1] * 31 + [2], "from 0 to 2; there are 2 groups"),
        ([0] * 31 + [1] * 33, "groups of 31 to 33 inputs; only groups of one size"),
        ([0] * 64, "groups of 0 to 64 inputs"),
        ([2**31 - 1] * 64, "from 2147483647 to 2147483647"),
    ],
)
def test_groups_of_inputs_that_make_no_sense(groups, said, tmp_path):
    parts = random_parts(GPTQ, 16, 64) | {"g_idx": torch.tensor(groups, dtype=torch.int32)}
    with pytest.raises(ValueError, match=rf"{NAME}\.g_idx .*{said}"):
        opened(tmp_path, parts, GPTQ).quantized("cpu")


def test_act_order_without_the_order(tmp_path):
    with pytest.raises(ValueError, match=rf"{NAME}\.g_idx is missing"):
        opened(tmp_path, random_parts(GPTQ, 16, 64), GPTQ | {"desc_act": True})


def test_packed_tensors_without_a_configuration(tmp_path):
    save_file(
        {f"{NAME}.qweight": torch.zeros(8, 16, dtype=torch.int32)}, tmp_path / "model.safetensors"
    )
    with pytest.raises(ValueError, match=rf"{NAME}\.qweight .* has no quantization_config"):
        packed_weights(open_tensors(tmp_path), None)
    (tmp_path / "config.json").write_text(json.dumps(SETTINGS))
    with pytest.raises(ValueError, match="no quantization_config"):
        _ = open_source(tmp_path).weights


def test_nothing_is_unpacked_when_a_file_is_opened(tmp_path, monkeypatch):
    parts = random_parts(GPTQ, 16, 64)
    parts["scales"].fill_(float("nan"))
    monkeypatch.setattr(PackedTensor, "quantized", lambda *_: pytest.fail("unpacked"))
    assert opened(tmp_path, parts, GPTQ).shape == (16, 64)
