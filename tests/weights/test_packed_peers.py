"""Checkpoints made by public quantizers are read, and ours are read by them; where they install.

`gptqmodel` (with `optimum`, through which transformers uses it), `auto_round` and AutoAWQ's `awq`
need environments of their own: their requirements exclude each other. The others are skipped.
"""

import json
import random
import shutil

import pytest
import torch
from torch import nn

from minillm.hf_config import read_config
from minillm.kv_cache import new_cache
from minillm.quantization.int4 import quantize_groups
from minillm.quantization.linear import QuantizedLinear, put, quantizable
from minillm.weights.load import load_transformer
from minillm.weights.save import save_model
from minillm.weights.source import open_source
from tests.weights.packing import AWQ, opened

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

# Widths that the kernels of the others take.
SIZES = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "attention_bias": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
TOLERANCE = 0.02  # of logits up to 4: they multiply in float16, by weights rounded to it


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A tiny random Llama with a tokenizer of whole words, w0 to w255."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("plain")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).half()
    for name, weight in model.named_parameters():
        weight.data *= 4 if weight.ndim == 2 else 1
        if name.endswith("bias"):
            weight.data.normal_(0, 0.3)
    model.save_pretrained(folder)
    words = tokenizers.models.WordLevel({f"w{i}": i for i in range(256)}, unk_token="w3")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="w3", pad_token="w0", bos_token="w1", eos_token="w2"
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def gptqmodel(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # it leaves files where it runs
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("GPTQMODEL_CPU_WORKERS", "2")  # its default is too few for two cores
    return pytest.importorskip("gptqmodel")


class Tokenizer:
    """The plain model's, as a file."""

    def __init__(self, folder):
        self.file = folder / "tokenizer.json"

    def save(self, path):
        shutil.copy(self.file, path)


def texts():
    draw = random.Random(0)
    return [" ".join(f"w{draw.randrange(4, 256)}" for _ in range(64)) for _ in range(40)]


def ids():
    return torch.randint(4, 256, (1, 40), generator=torch.Generator().manual_seed(1))


def ours(folder):
    source = open_source(folder)
    return load_transformer(read_config(source.settings), source.weights)


def logits(model):
    cache = new_cache(model.config, 1, 40, dtype=torch.float32, device=torch.device("cpu"))
    return model.logits(model(ids(), cache, lengths=torch.tensor([40])))[0]


def weights(model):
    """What the quantized layers of our model stand for, by name."""
    layers = {n: m for n, m in model.named_modules() if isinstance(m, QuantizedLinear)}
    return {name: layer.quantized.dequantize() for name, layer in layers.items()}


@pytest.mark.parametrize(
    "options",
    [
        {"bits": 4, "group_size": 32},
        {"bits": 4, "group_size": 32, "sym": False, "desc_act": True},
        {"bits": 4, "group_size": 64, "sym": False, "format": "gptq_v2"},
        {"bits": 8, "group_size": -1, "desc_act": True},
        {"bits": 4, "group_size": 32, "dynamic": {"+:.*down.*": {"bits": 8, "group_size": 64}}},
        {"bits": 4, "group_size": 32, "quant_method": "awq", "format": "gemm"},
        {"bits": 8, "group_size": 32, "quant_method": "awq", "format": "gemm"},
    ],
    ids=["gptq", "act-order", "gptq-v2", "eight-bits", "dynamic", "awq", "awq-eight-bits"],
)
def test_files_of_gptqmodel(options, gptqmodel, plain, tmp_path, record_property):
    config = gptqmodel.QuantizeConfig(device="cpu", offload_to_disk=False, **options)
    model = gptqmodel.GPTQModel.load(str(plain), config, dtype=torch.float16)
    for weight in model.model.parameters():
        weight.data[:4].abs_()  # zero points of 0, where they are not all the middle
    model.quantize(texts(), batch_size=1)
    model.save(str(tmp_path))
    backend = "torch_awq" if "quant_method" in options else "torch"
    kind = {"backend": gptqmodel.BACKEND(backend), "dtype": torch.float16}
    theirs = gptqmodel.GPTQModel.load(str(tmp_path), device="cpu", **kind).model
    mine = ours(tmp_path)
    found = weights(mine)
    assert len(found) == 14
    quantized = [m.quantized for m in mine.modules() if isinstance(m, QuantizedLinear)]
    assert any(bool((q.zeros == 0).any()) for q in quantized) is not options.get("sym", True)
    if options.get("desc_act") and options["group_size"] > 0:
        assert any(q.order is not None for q in quantized)
    if backend == "torch":
        for name, weight in found.items():
            layer = theirs.get_submodule(f"model.{name}")
            assert torch.equal(layer.dequantize_weight().t(), weight.half())
    expected = theirs(ids()).logits[0].detach().float()
    difference = (logits(mine) - expected).abs().max()
    record_property("figure", f"{options}: logits off by {difference:.4f} of {expected.max():.2f}")
    torch.testing.assert_close(logits(mine), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("reader", ["gptqmodel", "transformers"])
@pytest.mark.parametrize(
    ("options", "act_order"),
    [
        ({"bits": 4, "group_size": 32, "symmetric": True}, False),
        ({"bits": 4, "group_size": 32, "symmetric": True}, True),
        ({"bits": 4, "group_size": 64, "symmetric": False}, False),
        ({"bits": 8, "group_size": -1, "symmetric": True}, False),
        ({"bits": 8, "group_size": 32, "symmetric": False}, True),
    ],
)
def test_our_files(options, act_order, reader, gptqmodel, plain, tmp_path, record_property):
    source, model = open_source(plain), ours(plain)
    for name, linear in quantizable(model).items():
        weight = linear.weight.float()
        weight[:4] = weight[:4].abs()  # so that some zero points are 0 where they may be
        order = torch.randperm(weight.shape[1]) if act_order else None
        quantized = quantize_groups(weight if order is None else weight[:, order], **options)
        put(model, name, QuantizedLinear(quantized._replace(order=order), linear.bias))
    expected = logits(model)
    folder = str(save_model(tmp_path / "ours", model, source, Tokenizer(plain), None))
    if reader == "transformers":
        pytest.importorskip("optimum")
        from transformers import AutoModelForCausalLM

        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16, device_map="cpu")
    else:
        kind = {"backend": gptqmodel.BACKEND("torch"), "dtype": torch.float16}
        theirs = gptqmodel.GPTQModel.load(folder, device="cpu", **kind).model
    found = theirs(ids()).logits[0].detach().float()
    difference = (found - expected).abs().max()
    record_property("figure", f"{reader} {options}: {difference:.4f} of {expected.max():.2f}")
    assert type(theirs.model.layers[0].mlp.up_proj) is not nn.Linear
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("auto_gptq", {"sym": True}),
        ("auto_gptq", {"sym": False}),
        ("auto_gptq", {"sym": True, "bits": 8, "group_size": -1}),
        ("auto_awq", {"sym": True}),
        ("auto_awq", {"sym": False}),
        ("auto_round", {"sym": True}),
        ("auto_round:gptqmodel", {"sym": False}),
        ("auto_round:auto_gptq", {"sym": False}),
    ],
)
def test_files_of_auto_round(form, options, plain, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)  # it leaves files where it runs
    auto_round = pytest.importorskip("auto_round")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    settings = {"bits": 4, "group_size": 32, "iters": 0, "device_map": "cpu"} | options
    rounding = auto_round.AutoRound(
        model, AutoTokenizer.from_pretrained(plain), disable_opt_rtn=True, **settings
    )
    rounded = rounding.quantize()[0]
    expected = {
        name: module.weight.detach().clone()
        for name, module in rounded.model.named_modules()
        if isinstance(module, nn.Linear)
    }
    rounding.save_quantized(str(tmp_path / "written"), format=form, inplace=False)
    mine = ours(tmp_path / "written")
    found = weights(mine)
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        # In memory they keep the rounded weights in bfloat16, in the file the scales in float16.
        torch.testing.assert_close(weight, expected[name].float(), rtol=0.01, atol=1e-4)
    written = json.loads((tmp_path / "written/config.json").read_text())["quantization_config"]
    if written["sym"] and "awq" not in form:
        scales = [m.scales for m in mine.modules() if isinstance(m, QuantizedLinear)]
        assert any(bool((s < 0).any()) for s in scales)  # they do so, and it is right


@pytest.mark.parametrize("size", [32, -1])
def test_layers_of_autoawq(size, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    gemm = pytest.importorskip("awq.modules.linear.gemm")
    packing_utils = pytest.importorskip("awq.utils.packing_utils")
    torch.manual_seed(0)
    linear = nn.Linear(64, 96, bias=False).half()
    groups = 64 // size if size > 0 else 1
    grouped = linear.weight.detach().float().view(96, groups, -1)
    low, high = grouped.amin(-1), grouped.amax(-1)
    scales = ((high - low) / 15).half()
    zeros = (-low / scales.float()).round().clamp(0, 15)
    layer = gemm.WQLinear_GEMM.from_linear(
        linear, 4, 64 // groups, scales=scales.t().contiguous(), zeros=zeros.t().contiguous()
    )
    parts = {name: tensor.contiguous() for name, tensor in layer.state_dict().items()}
    found = opened(tmp_path, parts, AWQ | {"group_size": size}).quantized("cpu")
    theirs = packing_utils.dequantize_gemm(
        layer.qweight, layer.qzeros, layer.scales, 4, 64 // groups
    )
    assert torch.equal(found.dequantize().half(), theirs.t().half())
    off = (found.dequantize() - linear.weight.float()).abs()
    assert bool((off <= scales.float().repeat_interleave(64 // groups, dim=1) * 0.51).all())
