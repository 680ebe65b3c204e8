"""Tiny models whose features are drawn at random, so that they meet in ways nobody thought of."""

import random
from typing import Any

from tests.parity.models import Case


def random_case(seed: int) -> Case:
    """A tiny model of a random family: sizes, windows, rotations, biases, experts at random."""
    draw = random.Random(seed)
    kind = draw.choice(sorted(KINDS))
    heads, head_dim = draw.choice([1, 2, 3, 4, 6]), draw.choice([8, 12, 16])
    settings: dict[str, Any] = {
        "num_attention_heads": heads,
        "num_key_value_heads": draw.choice([k for k in range(1, heads + 1) if heads % k == 0]),
        "num_hidden_layers": draw.choice([1, 2, 3, 5]),
        "hidden_size": heads * head_dim,
        "intermediate_size": draw.choice([16, 56]),
        "tie_word_embeddings": draw.random() < 0.5,
        "rms_norm_eps": draw.choice([1e-6, 1e-5, 1e-3]),
    }
    window = draw.choice([2, 3, 9, 17, 39, 40, 41, 64])
    settings |= KINDS[kind](draw, settings, head_dim, window)
    rope = settings.get("rope_parameters", {})
    moving = rope.get("rope_type") in ("dynamic", "longrope")
    trained = rope.get("original_max_position_embeddings", settings.get("max_position_embeddings"))
    return Case("random", kind, settings, trained if moving else None)


def _rope(draw: random.Random) -> dict[str, Any]:
    """A rotation of any type but Phi-3's own."""
    trained = draw.choice([4, 9, 16, 31])
    more: dict[str, Any] = draw.choice(
        [
            {"rope_type": "default"},
            {"rope_type": "linear", "factor": draw.choice([1.0, 2.5, 8.0])},
            {"rope_type": "dynamic", "factor": draw.choice([1.0, 2.0, 4.0])},
            {
                "rope_type": "yarn",
                "factor": draw.choice([1.0, 3.0, 16.0]),
                "original_max_position_embeddings": trained,
                "beta_fast": draw.choice([4.0, 32.0]),
                "beta_slow": draw.choice([0.5, 1.0]),
                "truncate": draw.random() < 0.7,
            },
            {
                "rope_type": "llama3",
                "factor": draw.choice([2.0, 32.0]),
                "low_freq_factor": 1.0,
                "high_freq_factor": draw.choice([1.5, 4.0]),
                "original_max_position_embeddings": trained,
            },
        ]
    )
    rope: dict[str, Any] = {"rope_theta": draw.choice([100.0, 1e4, 5e5]), **more}
    found: dict[str, Any] = {"rope_parameters": rope}
    # Dynamic scaling measures a text against this key.
    if rope["rope_type"] == "dynamic":
        found["max_position_embeddings"] = trained
    return found


def _llama(draw: random.Random, settings: Any, head_dim: int, window: int) -> dict[str, Any]:
    biases = {"attention_bias": draw.random() < 0.4, "mlp_bias": draw.random() < 0.4}
    return biases | {"head_dim": draw.choice([head_dim, 32])} | _rope(draw)


def _mistral(draw: random.Random, settings: Any, head_dim: int, window: int) -> dict[str, Any]:
    return {
        "sliding_window": draw.choice([None, window]),
        "head_dim": head_dim,
        "hidden_size": 40,
    } | _rope(draw)


def _qwen2(draw: random.Random, settings: Any, head_dim: int, window: int) -> dict[str, Any]:
    return {
        "use_sliding_window": draw.random() < 0.6,
        "sliding_window": window,
        "max_window_layers": draw.choice([0, 1, 2, 5]),
    } | _rope(draw)


def _qwen3(draw: random.Random, settings: Any, head_dim: int, window: int) -> dict[str, Any]:
    own = {"head_dim": head_dim, "hidden_size": 40, "attention_bias": draw.random() < 0.4}
    return own | _qwen2(draw, settings, head_dim, window)


def _qwen3_moe(draw: random.Random, settings: Any, head_dim: int, window: int) -> dict[str, Any]:
    experts = draw.choice([1, 2, 5])
    return {
        "head_dim": head_dim,
        "num_experts": experts,
        "num_experts_per_tok": draw.randint(1, experts),
        "moe_intermediate_size": 16,
        "norm_topk_prob": draw.random() < 0.5,
        "decoder_sparse_step": draw.choice([1, 2]),
        "mlp_only_layers": draw.choice([[], [0]]),
        "use_sliding_window": draw.random() < 0.5,
        "sliding_window": window,
    } | _rope(draw)


def _mixtral(draw: random.Random, settings: Any, head_dim: int, window: int) -> dict[str, Any]:
    experts = draw.choice([1, 2, 5])
    own = {"num_local_experts": experts, "num_experts_per_tok": draw.randint(1, experts)}
    return own | _mistral(draw, settings, head_dim, window)


def _smollm3(draw: random.Random, settings: Any, head_dim: int, window: int) -> dict[str, Any]:
    listed = [draw.choice([0, 1]) for _ in range(settings["num_hidden_layers"])]
    return {
        "no_rope_layers": draw.choice([None, listed]),
        "no_rope_layer_interval": draw.choice([1, 2, 3, 4]),
        "use_sliding_window": draw.random() < 0.5,
        "sliding_window": window,
        "attention_bias": draw.random() < 0.4,
        "mlp_bias": draw.random() < 0.4,
    } | _rope(draw)


def _gemma3(draw: random.Random, settings: Any, head_dim: int, window: int) -> dict[str, Any]:
    stretched = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
    return {
        "head_dim": head_dim,
        "query_pre_attn_scalar": draw.choice([8, 24, 100]),
        "sliding_window": window,
        "sliding_window_pattern": draw.choice([1, 2, 3, 6]),
        "attention_bias": draw.random() < 0.3,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": draw.choice([{"rope_type": "default", "rope_theta": 1e6}, stretched]),
        },
    }


def _olmo2(draw: random.Random, settings: Any, head_dim: int, window: int) -> dict[str, Any]:
    return {"attention_bias": draw.random() < 0.4} | _rope(draw)


def _phi3(draw: random.Random, settings: Any, head_dim: int, window: int) -> dict[str, Any]:
    share = draw.choice([1.0, 0.75 if head_dim == 16 else 0.5])
    pairs, trained = int(head_dim * share) // 2, draw.choice([9, 16, 31])
    rope: dict[str, Any] = {"rope_type": "default"}
    if draw.random() < 0.7:
        rope = {
            "rope_type": "longrope",
            "short_factor": [draw.uniform(1, 2) for _ in range(pairs)],
            "long_factor": [draw.uniform(1, 20) for _ in range(pairs)],
            "original_max_position_embeddings": trained,
        }
    return {
        "original_max_position_embeddings": trained,
        "sliding_window": draw.choice([None, window]),
        "rope_parameters": rope | {"rope_theta": 1e4, "partial_rotary_factor": share},
    }


KINDS = {
    "Gemma3": _gemma3,
    "Llama": _llama,
    "Mistral": _mistral,
    "Mixtral": _mixtral,
    "Olmo2": _olmo2,
    "Phi3": _phi3,
    "Qwen2": _qwen2,
    "Qwen3": _qwen3,
    "Qwen3Moe": _qwen3_moe,
    "SmolLM3": _smollm3,
}
