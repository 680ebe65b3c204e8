"""What a step needs: by hand for SmolLM2, and against PyTorch's own counter of FLOPs."""

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from minillm import ModelConfig, Transformer
from minillm.bench.cost import Cost, keys_seen, prefill_cost, step_cost
from minillm.config import ExpertsConfig, LayerConfig
from minillm.hf_config import read_config
from minillm.kv_cache import new_cache
from minillm.layers.attention import attention_mask, causal_mask
from minillm.llm import LLM
from minillm.quantization.scheme import Scheme
from minillm.quantize import quantize_model
from tests.published import PUBLISHED

SMOLLM2 = read_config(PUBLISHED["SmolLM2-135M"][0])
MIXTRAL = read_config(PUBLISHED["Mixtral-8x7B"][0])
# SmolLM2: 30 layers of 2·576·64·(9 + 3) + 3·576·1536 weights in matrices, and the head's 576·49152.
PRODUCTS = 30 * (884_736 + 2_654_208) + 28_311_552  # 134,479,872
WEIGHTS = 4 * 134_515_008
TOKEN = 4 * 2 * 30 * 3 * 64  # bytes of the cache: 46,080


def config(*layers: LayerConfig, **changes: int) -> ModelConfig:
    sizes: dict[str, Any] = {
        "vocab_size": 60,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
    }
    return ModelConfig(**(sizes | changes), num_hidden_layers=len(layers), layers=layers)


def naive_attention(q, k, v, mask=None):
    """Two products, which PyTorch's counter knows; its fused kernel for CPUs it does not."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    seen = causal_mask(q.shape[2], k.shape[2]) if mask is None else mask
    scores = (q @ k.transpose(2, 3)).masked_fill(~seen, -torch.inf)
    return scores.softmax(-1) @ v


def counted(shape: ModelConfig, batch: int, steps: list[int]) -> list[int]:
    """FLOPs of a forward pass and its logits, by PyTorch, for steps of so many tokens."""
    model = Transformer(shape).eval()
    model.ops = dataclasses.replace(model.ops, attention=naive_attention)
    cache, found = new_cache(shape, batch, sum(steps)), []
    for width in steps:
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            model.logits(model(torch.zeros(batch, width, dtype=torch.int64), cache)[:, -1])
        found.append(counter.get_total_flops())
    return found


@pytest.mark.parametrize("batch", [1, 8])
def test_a_decode_step_by_hand(batch):
    cost = step_cost(SMOLLM2, batch, 1, 100)
    assert cost.weight_bytes == WEIGHTS  # not times the batch
    assert cost.cache_bytes == batch * 101 * TOKEN  # 100 read, one written; times the batch
    assert cost.flops == batch * (2 * PRODUCTS + 4 * 9 * 64 * 101 * 30)
    assert cost.intensity == pytest.approx(cost.flops / (WEIGHTS + batch * 4_654_080))


def test_a_prefill_by_hand():
    cost = step_cost(SMOLLM2, 2, 1_000)
    assert cost.weight_bytes == WEIGHTS
    assert cost.cache_bytes == 2 * 1_000 * TOKEN
    layers = 2 * (PRODUCTS - 28_311_552) * 2_000
    assert cost.flops == layers + 2 * 28_311_552 * 2 + 4 * 9 * 64 * 500_500 * 30 * 2


def test_sixteen_bits_halve_the_bytes_and_not_the_flops():
    whole = step_cost(SMOLLM2, 3, 1, 50)
    half = step_cost(SMOLLM2, 3, 1, 50, dtype=torch.bfloat16)
    assert half == Cost(whole.flops, whole.weight_bytes / 2, whole.cache_bytes / 2)


def test_a_head_of_its_own_is_read_where_positions_are_scored():
    llama = read_config(PUBLISHED["Llama-2-7b"][0])
    head, row = 2 * 32_000 * 4096, 2 * 4096
    table = head
    scored = step_cost(llama, 2, 3, dtype=torch.float16)
    assert scored.weight_bytes == 2 * 6_738_415_616 - table + 6 * row
    silent = step_cost(llama, 2, 3, scored=0, dtype=torch.float16)
    assert silent.weight_bytes == scored.weight_bytes - head
    assert silent.flops == scored.flops - 2 * 2 * 32_000 * 4096


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "layers",
    [
        [LayerConfig(), LayerConfig()],
        [LayerConfig(sliding_window=5, sinks=2), LayerConfig()],
        [LayerConfig(experts=ExpertsConfig(4, 2, 8)), LayerConfig()],
    ],
)
def test_flops_of_single_steps_are_those_that_pytorch_counts(layers, batch):
    shape = config(*layers)
    found = counted(shape, batch, [1] * 12)
    assert found == [step_cost(shape, batch, 1, n).flops for n in range(12)]


def test_flops_of_a_prefill_are_those_that_pytorch_counts_but_for_hidden_pairs():
    shape, T = config(LayerConfig(), LayerConfig()), 10
    (whole,) = counted(shape, 2, [T])
    hidden = T * (T - 1) // 2  # of T·T pairs: keys that come after the query
    assert step_cost(shape, 2, T).flops == whole - 2 * 2 * 4 * 4 * 8 * hidden


@pytest.mark.parametrize("window", [None, 1, 4, 6])
@pytest.mark.parametrize("sinks", [0, 2])
@pytest.mark.parametrize(("new", "context"), [(1, 0), (1, 7), (5, 0), (9, 3), (3, 20)])
def test_pairs_are_those_of_the_mask(window, sinks, new, context):
    if window is None and sinks:
        pytest.skip("no sinks without a window")
    positions = torch.arange(context + new)[None]
    seen = attention_mask(positions[:, context:], positions, window, sinks)
    assert keys_seen(LayerConfig(window, sinks=sinks), new, context) == int(seen.sum())


def test_a_window_bounds_the_cache_that_is_read():
    windowed = SMOLLM2.with_window(64, sinks=4)
    far, further = (step_cost(windowed, 1, 1, n) for n in (1_000, 4_000))
    assert far == further
    assert far.cache_bytes == 68 * TOKEN  # 67 that stay, and the new one


def test_few_tokens_read_few_experts():
    """An expert of Mixtral-8x7B: 3·4096·14336 weights in each of 32 layers."""
    experts = 32 * 2 * 3 * 4096 * 14_336
    steps = [step_cost(MIXTRAL, batch, 1, 0, dtype=torch.float16) for batch in (1, 2, 4, 8)]
    rows = 2 * 4096
    rest = steps[0].weight_bytes - 2 * experts
    read = [
        round((s.weight_bytes - rest - i * rows) / experts, 6)
        for s, i in zip(steps, (0, 1, 3, 7), strict=True)
    ]
    assert read == [2, 4, 8, 8]


def test_a_real_model_counts_as_its_configuration(llm):
    assert step_cost(llm, 4, 1, 77) == step_cost(llm.config, 4, 1, 77)
    assert prefill_cost(llm, 2, 300) == step_cost(llm.config, 2, 300)


def test_chunks_read_the_weights_again_and_score_once(llm):
    whole, halves = step_cost(llm, 1, 12_000), prefill_cost(llm, 1, 12_000)
    assert halves.flops == whole.flops
    assert halves.weight_bytes == 2 * whole.weight_bytes - 4 * 28_311_552
    assert halves.cache_bytes == whole.cache_bytes + 8_192 * TOKEN


@pytest.mark.parametrize(("bits", "code_bytes"), [(8, 1), (4, 0.5)])
def test_quantized_weights_count_by_their_codes(bits, code_bytes):
    shape = config(LayerConfig(), hidden_size=64, intermediate_size=128)
    model = Transformer(shape).eval().requires_grad_(False)
    quantize_model(model, Scheme("int4", bits, 32, symmetric=False), progress=False)
    products = 2 * 64 * 8 * 6 + 3 * 64 * 128
    others = 4 * (3 * 64 + 60 * 64)  # norms and the head
    expected = products * code_bytes + products / 32 * 3 + others
    assert step_cost(stand_in(model), 5, 1, 0).weight_bytes == expected + 5 * 4 * 64


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_quantized_cache_counts_by_its_codes(llm, kind):
    quantized = copy.copy(llm)
    quantized.kv_cache = kind
    bits = int(kind[3:])
    block = 30 * 3 * (2 * 32 * 64 * bits // 8 + 4 * (64 + 32 * 2))  # codes; scales and minima
    assert step_cost(quantized, 2, 1, 100).cache_bytes == 2 * (3 * block + 5 * TOKEN)
    # The step that fills the fourth block reads 31 exact tokens, and writes codes alone.
    assert step_cost(quantized, 1, 1, 127).cache_bytes == 4 * block + 31 * TOKEN
    assert step_cost(quantized, 1, 70, 0).cache_bytes == 2 * block + 6 * TOKEN


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"batch": 0}, "batch is 0; at least 1"),
        ({"new_tokens": 0}, "new_tokens is 0; at least 1"),
        ({"context": -1}, "context is -1; at least 0"),
        ({"scored": -1}, "scored is -1; at least 0"),
    ],
)
def test_counts_that_cannot_be_are_refused(counts, message):
    with pytest.raises(ValueError, match=message):
        step_cost(SMOLLM2, **counts)


@pytest.mark.parametrize(
    ("counts", "message"), [((0, 5), "batch is 0; at least 1"), ((1, 0), "prompt_tokens is 0")]
)
def test_no_prompts_are_refused(llm, counts, message):
    with pytest.raises(ValueError, match=message):
        prefill_cost(llm, *counts)


def stand_in(model: Transformer) -> LLM:
    """An `LLM` without a tokenizer."""
    llm = object.__new__(LLM)
    llm.model, llm.config, llm.kv_cache = model, model.config, None
    return llm
