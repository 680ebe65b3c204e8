"""Conversion of a GGUF file, against gguf's own dequantization, transformers and llama.cpp."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from minillm.hf_config import read_config
from minillm.weights.gguf import convert, open_gguf
from minillm.weights.gguf_config import unpermuted_rows
from minillm.weights.gguf_file import read_gguf
from minillm.weights.safetensors import open_weights
from tests.fuzz.gguf_models import BLOCK
from tests.weights.helpers import (
    HEADS,
    INNER,
    KV_HEADS,
    LAYERS,
    TEMPLATE,
    WIDTH,
    D,
    tiny_tensors,
    tiny_vocabulary,
    write_gguf,
)

# One head of width 8: where llama.cpp puts each Hugging Face row, and how to undo it.
STORED, UNDO = [0, 4, 1, 5, 2, 6, 3, 7], [0, 2, 4, 6, 1, 3, 5, 7]
TYPES = {
    "token_embd.weight": "Q8_0",
    "output.weight": "F16",
    "blk.0.attn_q.weight": "Q4_1",
    "blk.0.attn_k.weight": "Q4_1",
    "blk.1.attn_q.weight": "Q4_0",
    "blk.1.attn_k.weight": "BF16",
    "blk.0.ffn_down.weight": "Q5_1",
    "blk.1.ffn_up.weight": "Q5_0",
}


def converted(folder, tensors, **kwargs):
    values = write_gguf(folder / "tiny.gguf", tensors, **kwargs)
    (folder / "model").mkdir()
    convert(folder / "tiny.gguf", folder / "model")
    return folder / "model", values


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


# L04: the rows of q and k


def test_l04_rows_of_one_head_by_hand():
    assert unpermuted_rows(1, 8).tolist() == UNDO
    assert [STORED[row] for row in UNDO] == list(range(8))


def test_l04_rows_by_head_count():
    by_hand = [head * 8 + row for head in range(6) for row in UNDO]
    assert unpermuted_rows(6, 8).tolist() == by_hand
    assert unpermuted_rows(2, 8).tolist() == by_hand[:16]


def test_l04_q_uses_the_heads_and_k_the_kv_heads(tmp_path):
    tensors = tiny_tensors()
    rng = np.random.default_rng(1)
    right = {}
    for name, heads in (("q", HEADS), ("k", KV_HEADS)):
        right[name] = rng.normal(size=(heads * D, WIDTH)).astype(np.float32)
        stored = [head * 8 + row for head in range(heads) for row in STORED]
        tensors[f"blk.0.attn_{name}.weight"] = right[name][stored]
    folder, values = converted(tmp_path, tensors)
    weights = open_weights(folder)
    prefix = "model.layers.0.self_attn"
    for name in ("q", "k"):
        assert np.array_equal(weights[f"{prefix}.{name}_proj.weight"].numpy(), right[name])
    for name, hf_name in (("attn_v", "v_proj"), ("attn_output", "o_proj")):
        untouched = weights[f"{prefix}.{hf_name}.weight"].numpy()
        assert np.array_equal(untouched, values[f"blk.0.{name}.weight"])


# Values


@pytest.mark.parametrize("tied", [True, False])
def test_values_equal_gguf_dequantize(tmp_path, tied, monkeypatch):
    monkeypatch.setattr(
        "minillm.weights.gguf_tensor.CHUNK_VALUES", 7 * WIDTH
    )  # several uneven chunks
    types = {name: kind for name, kind in TYPES.items() if not tied or name != "output.weight"}
    folder, values = converted(tmp_path, tiny_tensors(tied=tied), types=types)
    weights = {name: tensor.numpy() for name, tensor in open_weights(folder).items()}
    expected = {
        "model.embed_tokens.weight": values["token_embd.weight"],
        "model.norm.weight": values["output_norm.weight"],
    }
    if not tied:
        expected["lm_head.weight"] = values["output.weight"]
    for layer in range(LAYERS):
        for name, hf_name in BLOCK.items():
            value = values[f"blk.{layer}.{name}.weight"]
            if name in ("attn_q", "attn_k"):
                value = value.reshape(-1, 8, WIDTH)[:, UNDO].reshape(-1, WIDTH)
            expected[f"model.layers.{layer}.{hf_name}.weight"] = value
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        assert weights[name].dtype == np.float32
        assert np.array_equal(weights[name], value), name
    assert ("lm_head.weight" in weights) is not tied


def test_logits_of_a_model_that_went_through_gguf(tmp_path):
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    vocab = len(tiny_vocabulary()[0])
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=D,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
    )
    original = LlamaForCausalLM(config).eval()
    state = {name: tensor.numpy() for name, tensor in original.state_dict().items()}
    tensors = {}
    for name in tiny_tensors():
        if not name.startswith("blk."):
            hf_name = {"token_embd": "embed_tokens", "output_norm": "norm"}[name.split(".")[0]]
            tensors[name] = state[f"model.{hf_name}.weight"]
            continue
        _, layer, part, _ = name.split(".")
        block, projection = part.split("_")
        if projection == "norm":
            hf_name = {"attn": "input_layernorm", "ffn": "post_attention_layernorm"}[block]
        elif block == "attn":
            hf_name = f"self_attn.{projection[0]}_proj"
        else:
            hf_name = f"mlp.{projection}_proj"
        value = state[f"model.layers.{layer}.{hf_name}.weight"]
        if projection in ("q", "k"):  # as llama.cpp's converter does
            value = value.reshape(-1, 2, D // 2, WIDTH).swapaxes(1, 2).reshape(-1, WIDTH)
        tensors[name] = value
    folder, _ = converted(tmp_path, tensors)
    again = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert isinstance(again, LlamaForCausalLM)
    ids = torch.randint(vocab, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(again(ids).logits, original(ids).logits)


# The other files


def test_config_in_both_spellings(tmp_path):
    from transformers import AutoConfig, GenerationConfig

    folder, _ = converted(tmp_path, tiny_tensors())
    config = AutoConfig.from_pretrained(folder)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 100_000.0}
    assert config.rms_norm_eps == 1e-5  # not 9.999999747378752e-06
    assert (config.head_dim, config.tie_word_embeddings) == (D, True)
    assert config.architectures == ["LlamaForCausalLM"]
    ours = read(folder / "config.json")
    assert ours["rope_theta"] == 100_000.0
    del ours["rope_parameters"]
    for spelling in (ours, read(folder / "config.json")):
        layer = read_config(spelling).layers[0]
        assert layer.rope is not None
        assert layer.rope.rope_theta == 100_000.0
    generation = GenerationConfig.from_pretrained(folder)
    assert (generation.bos_token_id, generation.eos_token_id, generation.pad_token_id) == (1, 2, 2)


def test_tokenizer_files(tmp_path):
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    folder, _ = converted(tmp_path, tiny_tensors())
    tokens, _ = tiny_vocabulary()
    fast = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert fast.get_vocab() == {token: index for index, token in enumerate(tokens)}
    the, space_the = tokens.index("the"), tokens.index("Ġthe")
    assert fast.encode("the the").ids == [the, space_the]
    assert fast.encode("<|im_start|>the<tag>").ids == [1, the, 3]
    # Control tokens (type 3) are special, user-defined ones (type 4) are not.
    assert fast.decode([1, the, 3, 2], skip_special_tokens=True) == "the<tag>"
    # Whatever Unicode calls a number stands alone, a half too.
    split = fast.pre_tokenizer.pre_tokenize_str("a12 ½")
    assert [piece for piece, _ in split] == ["a", "1", "2", "Ġ", "Â½"]
    config = read(folder / "tokenizer_config.json")
    assert config["chat_template"] == TEMPLATE
    assert config["clean_up_tokenization_spaces"] is False
    auto = AutoTokenizer.from_pretrained(folder)
    assert (auto.bos_token, auto.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (auto.pad_token, auto.unk_token) == ("<|im_end|>", "<|endoftext|>")
    assert auto("the 12 ½").input_ids == fast.encode("the 12 ½").ids
    messages = [{"role": "user", "content": "the"}]
    assert auto.apply_chat_template(messages, tokenize=False) == "<|im_start|>the<|im_end|>"


def test_gpt_2_keeps_digits_together(tmp_path):
    from tokenizers import Tokenizer

    folder, _ = converted(tmp_path, tiny_tensors(), change={"tokenizer.ggml.pre": "gpt-2"})
    split = Tokenizer.from_file(str(folder / "tokenizer.json")).pre_tokenizer
    assert [piece for piece, _ in split.pre_tokenize_str("a12 b")] == ["a", "12", "Ġb"]


def test_sentencepiece_stays_out_of_the_process(tmp_path):
    (tmp_path / "sentencepiece.py").write_text("raise SystemExit('imported')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from minillm.weights.gguf_tensor import import_gguf\n"
        "import_gguf()\n"
        "assert 'sentencepiece' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# The real file


def test_the_real_model_equals_its_gguf_file(smollm2):
    import gguf

    path = next(smollm2.glob("*.gguf"))
    stored, weights = read_gguf(path).tensors, open_weights(smollm2)
    assert len(stored) == len(weights) == 272
    assert open_gguf(path).tensors.keys() == weights.keys()
    for name, hf_name, heads in (
        ("token_embd", "embed_tokens", 0),
        ("blk.0.attn_q", "layers.0.self_attn.q_proj", 9),
        ("blk.29.attn_k", "layers.29.self_attn.k_proj", 3),
        ("blk.7.ffn_down", "layers.7.mlp.down_proj", 0),
        ("output_norm", "norm", 0),
    ):
        tensor = stored[f"{name}.weight"]
        kind = gguf.GGMLQuantizationType[tensor.kind]
        value = gguf.quants.dequantize(tensor.data, kind).reshape(tensor.shape)
        if heads:
            value = value.reshape(heads, 32, 2, 576).swapaxes(1, 2).reshape(-1, 576)
        assert np.array_equal(weights[f"model.{hf_name}.weight"].numpy(), value), name


def test_how_long_the_real_model_takes(smollm2, record_property):
    path = next(smollm2.glob("*.gguf"))
    best = {"opened": float("inf"), "as float32": float("inf")}
    for _ in range(2):
        start = time.process_time()
        model = open_gguf(path)
        opened = time.process_time()
        values = sum(tensor.to(dtype=torch.float32).numel() for tensor in model.tensors.values())
        best["opened"] = min(best["opened"], opened - start)
        best["as float32"] = min(best["as float32"], time.process_time() - opened)
    assert values == 134_515_008
    text = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in best.items())
    record_property("figure", f"SmolLM2's GGUF file, processor time: {text}")


def test_the_real_model_knows_the_capital_of_france(smollm2):
    from transformers import AutoTokenizer, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = LlamaForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        best = model(ids).logits[0, -1].argmax()
    assert tokenizer.decode([int(best)]) == " Paris"
