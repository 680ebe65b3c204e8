"""The oracle can fail: a model that is not what its files say is noticed, whatever differs."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from minillm.llm import LLM
from minillm.model import Transformer
from minillm.tokenizer import ChatTemplate
from minillm.weights import pack
from tests.fuzz.folders import TEMPLATE
from tests.fuzz.gguf_format import decode, encode
from tests.fuzz.tables import WrongError, folder_tensors
from tests.fuzz.worker import build, explain, model_of


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    root = tmp_path_factory.mktemp("oracle") / "bases"
    build(root)
    return root


@pytest.fixture(params=["qwen3_moe", "mistral", "gguf_llama2"])
def base(request, bases):
    return bases / request.param


@pytest.fixture
def llm(base):
    return LLM.from_pretrained(model_of(base, base.name), device="cpu", dtype="float32")


def test_every_base_is_what_its_files_say(bases):
    for base in sorted(bases.iterdir()):
        llm = LLM.from_pretrained(model_of(base, base.name), device="cpu", dtype="float32")
        assert explain(llm, base, llm, base), base.name


def test_exchanged_tensors(llm, base):
    first, second = (layer.input_layernorm for layer in llm.model.layers)
    first.weight, second.weight = second.weight, first.weight
    with pytest.raises(WrongError, match="logits differ"):
        explain(llm, base, llm, base)


def test_another_setting(llm, base):
    unplaced = [replace(layer, rope=None) for layer in llm.config.layers]
    config = replace(llm.config, layers=tuple(unplaced))
    llm.model, weights = Transformer(config), llm.model.state_dict()
    llm.model.load_state_dict(weights)
    llm.model.requires_grad_(False)
    with pytest.raises(WrongError, match="logits differ"):
        explain(llm, base, llm, base)


def test_another_template(llm, base):
    template = ChatTemplate(TEMPLATE + " ")
    other = LLM(llm.model, llm.tokenizer, chat_template=template)
    with pytest.raises(WrongError, match="the template gives"):
        explain(other, base, llm, base)


def test_another_tokenizer(llm, base, bases):
    other = "gguf_llama" if base.name == "gguf_llama2" else "gemma3_text"
    llm.tokenizer = LLM.from_pretrained(model_of(bases / other, other), device="cpu").tokenizer
    with pytest.raises(WrongError, match=r"token ids|decoded"):
        explain(llm, base, llm, base)


def test_other_end_tokens(llm, base):
    llm.eos_token_ids = frozenset({7})
    with pytest.raises(WrongError, match="end an answer"):
        explain(llm, base, llm, base)


def test_a_feature_that_transformers_does_not_read(bases, tmp_path):
    """transformers refuses the file, so that what was loaded must be the undamaged model."""
    folder = tmp_path / "model"
    shutil.copytree(bases / "qwen3", folder)
    undamaged = LLM.from_pretrained(folder, device="cpu", dtype="float32")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"rms_norm_eps": "small"}))
    assert "no other feature" in explain(undamaged, folder, undamaged, bases / "qwen3")[0]
    other = LLM.from_pretrained(bases / "qwen3", device="cpu", dtype="float32")
    other.config = replace(other.config, rms_norm_eps=0.5)
    with pytest.raises(WrongError, match="transformers refuses it"):
        explain(other, folder, undamaged, bases / "qwen3")


@pytest.fixture(params=["packed_gptq", "packed_gptq_v2", "packed_awq"])
def packed(request, bases):
    folder = bases / request.param
    return folder, LLM.from_pretrained(folder, device="cpu", dtype="float32")


@pytest.mark.parametrize("what", ["codes", "scales", "zeros", "order"])
def test_packed_weights_that_are_read_wrongly(packed, what):
    folder, llm = packed
    layer = llm.model.layers[1].self_attn.q_proj
    part = torch.arange(layer.in_features) if what == "order" else getattr(layer, what)
    setattr(layer, what, part.roll(1, dims=-1))
    if what == "zeros":
        layer.zeros = layer.zeros - 1
    with pytest.raises(WrongError, match="logits differ"):
        explain(llm, folder, llm, folder)


def test_packed_weights_that_are_written_wrongly(packed, monkeypatch):
    folder, llm = packed
    right = pack.pack_words
    monkeypatch.setattr(pack, "pack_words", lambda codes, bits: right(codes.flip(0), bits))
    with pytest.raises(WrongError, match="another when it is written"):
        explain(llm, folder, llm, folder)


@pytest.mark.parametrize("damage", ["gap", "overlap", "tail"])
def test_broken_tables(bases, tmp_path, damage):
    content = (bases / "llama" / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    name = min(header.keys() - {"__metadata__"})
    begin, end = header[name]["data_offsets"]
    moved = {"gap": [begin + 4, end + 4], "overlap": [begin, end + 4], "tail": [begin, end]}
    header[name]["data_offsets"] = moved[damage]
    text = json.dumps(header).encode()
    values = content[start:] + bytes(4 * (damage == "tail"))
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + values)
    with pytest.raises(WrongError):
        folder_tensors(tmp_path)


def test_gguf_files_are_taken_apart_and_put_together(bases):
    for path in sorted(bases.glob("*/model.gguf")):
        document = decode(path.read_bytes())
        assert encode(document) == path.read_bytes()
        document.tensors[1][1].offset += document.alignment
        with pytest.raises(WrongError, match="is next"):
            decode(encode(document))
