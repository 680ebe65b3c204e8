"""Faults that implementations have had: many inputs of each kind, with transformers as oracle."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from minillm.config import RopeConfig
from minillm.hf_config import read_config
from minillm.kv_cache import new_cache
from minillm.layers.attention import attention
from minillm.layers.norm import rms_norm
from minillm.layers.rope import rope_frequencies
from minillm.model import Transformer
from tests.parity import measure
from tests.parity.models import RICHEST, written
from tests.parity.models import settings as settings_of_family
from tests.parity.pairs import pair_of

HEAD_DIMS = st.sampled_from([8, 10, 16, 24, 64, 96, 128])
THETAS = st.sampled_from([1e4, 1e5, 5e5, 1e6, 2e6])
TRAINED = st.sampled_from([16, 64, 2048, 4096, 8192])
FACTORS = st.floats(1, 64)


def their_frequencies(head_dim, rope, trained, length=None):
    """transformers' frequencies in float32, and what it multiplies cos and sin by."""
    config = LlamaConfig(
        head_dim=head_dim, rope_parameters=rope, max_position_embeddings=trained * 4
    )
    return ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", seq_len=length)


def assert_same_rope(head_dim, rope, trained, length=None):
    theirs, scale = their_frequencies(head_dim, rope, trained, length)
    named: Any = {key: tuple(v) if isinstance(v, list) else v for key, v in rope.items()}
    ours = RopeConfig(**named)
    lengths = None if length is None else torch.tensor([length])
    found = rope_frequencies(ours, head_dim, lengths).reshape(-1)
    torch.testing.assert_close(found.float(), theirs, rtol=2e-5, atol=0)
    assert ours.attention_scale == pytest.approx(scale)


@settings(max_examples=60, deadline=None)
@given(HEAD_DIMS, THETAS, TRAINED, FACTORS, st.floats(0.5, 4), st.floats(0.5, 8))
def test_m01_llama3_frequencies(head_dim, theta, trained, factor, low, wider):
    rope = {"rope_type": "llama3", "rope_theta": theta, "factor": factor}
    rope |= {"low_freq_factor": low, "high_freq_factor": low + wider}
    rope |= {"original_max_position_embeddings": trained}
    assert_same_rope(head_dim, rope, trained)


@settings(max_examples=60, deadline=None)
@given(HEAD_DIMS, THETAS, TRAINED, FACTORS, st.floats(0.01, 8))
def test_m02_dynamic_frequencies(head_dim, theta, trained, factor, share):
    """Short of the trained length, at it, and beyond: transformers measures against its own key."""
    rope = {"rope_type": "dynamic", "rope_theta": theta, "factor": factor}
    config = LlamaConfig(head_dim=head_dim, rope_parameters=rope, max_position_embeddings=trained)
    ours = RopeConfig(theta, "dynamic", factor, trained)
    for length in (max(int(share * trained), 1), trained, trained + 1):
        theirs, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, "cpu", seq_len=length)
        found = rope_frequencies(ours, head_dim, torch.tensor([length]))[0]
        torch.testing.assert_close(found.float(), theirs, rtol=2e-5, atol=0)


def test_m02_short_long_short_gives_the_same_logits():
    pair = pair_of("llama-dynamic")

    def logits(length):
        ids = pair.ids[:, :length]
        return measure.whole(pair.ours, ids, new_cache(pair.ours.config, *ids.shape))

    for length in (8, 16, 17, 20):
        before = logits(length)
        logits(40)
        assert torch.equal(logits(length), before)


@settings(max_examples=60, deadline=None)
@given(
    HEAD_DIMS,
    THETAS,
    TRAINED,
    FACTORS,
    st.sampled_from([(32.0, 1.0), (16.0, 2.0), (64.0, 0.5), (4.0, 3.5)]),
    st.booleans(),
    st.none() | st.floats(0.5, 2),
)
def test_m03_yarn_frequencies(head_dim, theta, trained, factor, betas, truncate, attention_factor):
    rope = {"rope_type": "yarn", "rope_theta": theta, "factor": factor, "truncate": truncate}
    rope |= {"beta_fast": betas[0], "beta_slow": betas[1], "attention_factor": attention_factor}
    rope |= {"original_max_position_embeddings": trained}
    assert_same_rope(head_dim, rope, trained)


@settings(max_examples=40, deadline=None)
@given(HEAD_DIMS, THETAS, TRAINED, st.data())
def test_longrope_frequencies(head_dim, theta, trained, data):
    tables = st.lists(st.floats(1, 60), min_size=head_dim // 2, max_size=head_dim // 2)
    rope = {"rope_type": "longrope", "rope_theta": theta, "factor": data.draw(FACTORS)}
    rope |= {"short_factor": data.draw(tables), "long_factor": data.draw(tables)}
    rope |= {"original_max_position_embeddings": trained}
    for length in (1, trained, trained + 1, trained * 3):
        assert_same_rope(head_dim, rope, trained, length)


@pytest.mark.parametrize(
    "name", ["llama3-rope", "mistral", "llama-yarn", "gemma3", "smollm3", "qwen3-moe", "phi3"]
)
def test_m07_left_padded_batch_of_transformers_gives_the_same_tokens(name):
    """transformers pads on the left, minillm on the right: neither may be seen in the tokens."""
    pair, lengths = pair_of(name), [3, 12, 1, 23]
    prompts = [pair.ids[row % 2, :length].tolist() for row, length in enumerate(lengths)]
    width = max(lengths)
    padded = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - n) + [1] * n for n in lengths])
    expected = pair.theirs.generate(
        padded,
        attention_mask=mask,
        max_new_tokens=6,
        min_new_tokens=6,
        do_sample=False,
        eos_token_id=None,
    )[:, width:]
    more, cache = expected[:, :-1], new_cache(pair.ours.config, 4, width + 6)
    found = measure.stepwise(pair.ours, prompts, more, cache)
    assert found.argmax(-1).tolist() == expected.tolist()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    st.floats(-7, 4.5),
    st.integers(1, 200),
    st.integers(0, 2**31),
)
def test_m10_norm_of_any_size_of_activations(dtype, exponent, width, seed):
    """From 1e-7 to 30,000: squares that overflow or vanish in half precision."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(3, width, generator=generator).clamp(-2, 2) * 10**exponent).to(dtype)
    weight = torch.randn(width, generator=generator).to(dtype)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-12).sqrt()
    found = rms_norm(x, weight, 1e-12)
    assert found.dtype == dtype
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), exact * weight.double(), rtol=4 * step, atol=step)


@pytest.mark.parametrize("H", [1, 2, 4, 6, 12, 15])
@pytest.mark.parametrize("T", [1, 5])
def test_m11_any_number_of_heads_to_a_group(H, T):
    generator = torch.Generator().manual_seed(H)
    q = torch.randn(2, H, T, 8, generator=generator)
    for K in (K for K in range(1, H + 1) if H % K == 0):
        k, v = torch.randn(2, 2, K, 7, 8, generator=generator)
        repeated = (x.repeat_interleave(H // K, dim=1) for x in (k, v))
        torch.testing.assert_close(attention(q, k, v), attention(q, *repeated))


@pytest.mark.parametrize("model_type", [name for name in RICHEST if name != "phi3"])
def test_m12_shapes_where_head_dim_is_not_width_over_heads(model_type):
    toy = {"hidden_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    config = read_config(settings_of_family(model_type, **toy))
    with torch.device("meta"):
        shapes = {name: tuple(p.shape) for name, p in Transformer(config).named_parameters()}
    projections = [shapes[f"layers.0.self_attn.{name}_proj.weight"] for name in "qkvo"]
    assert projections == [(64, 40), (32, 40), (32, 40), (40, 64)]


def test_m12_phi_has_no_head_dim_of_its_own():
    """transformers takes one from the file all the same."""
    assert read_config(written("phi3") | {"head_dim": 16}).head_dim == 16
