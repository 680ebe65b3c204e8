"""RoPE against hand-worked values, and the properties that define it."""

import math

import pytest
import torch

from minillm.config import RopeConfig
from minillm.layers.rope import apply_rope, rope_frequencies, rope_tables


def test_one_pair_by_hand():
    # D = 2: a single pair, one radian per token. (1, 0) at position 3 → (cos 3, sin 3).
    cos, sin = rope_tables(torch.tensor([[3]]), RopeConfig(rope_theta=10_000.0), 2)
    turned = apply_rope(torch.tensor([[[[1.0, 0.0]]]]), cos, sin)
    torch.testing.assert_close(turned, torch.tensor([[[[math.cos(3), math.sin(3)]]]]))


def test_pairs_are_half_split():
    # Only x[1] is set in D = 4: its partner is x[3], not x[0] or x[2].
    cos, sin = rope_tables(torch.tensor([[1]]), RopeConfig(rope_theta=100.0), 4)
    turned = apply_rope(torch.tensor([[[[0.0, 1.0, 0.0, 0.0]]]]), cos, sin)
    torch.testing.assert_close(turned[0, 0, 0], torch.tensor([0, math.cos(0.1), 0, math.sin(0.1)]))


def test_score_depends_on_distance_only():
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 64, generator=generator)
    rope = RopeConfig(rope_theta=100_000.0)

    def score(q_position: int, k_position: int) -> float:
        cos, sin = rope_tables(torch.tensor([[q_position, k_position]]), rope, 64)
        both = apply_rope(torch.cat([q, k], dim=2), cos, sin)
        return float(both[0, 0, 0] @ both[0, 0, 1])

    assert score(107, 100) == pytest.approx(score(7, 0), abs=1e-4)
    assert score(8_107, 8_100) == pytest.approx(score(7, 0), abs=1e-4)
    assert score(7, 0) != pytest.approx(score(0, 7), abs=1e-2)


def test_far_positions_stay_exact():
    # In float32 the angle 1,000,003 · θ would already be off by more than 0.01 radians.
    cos, _ = rope_tables(torch.tensor([[1_000_003]]), RopeConfig(), 64)
    assert float(cos[0, 0, 0, 0]) == pytest.approx(math.cos(1_000_003), abs=1e-6)


def test_half_precision_input_is_turned_in_float32():
    cos, sin = rope_tables(torch.tensor([[8_191]]), RopeConfig(), 64)
    x = torch.randn(1, 2, 1, 64, generator=torch.Generator().manual_seed(1)).half()
    turned = apply_rope(x, cos, sin)
    assert turned.dtype == torch.float16
    torch.testing.assert_close(turned.float(), apply_rope(x.float(), cos, sin), atol=4e-3, rtol=0)


def test_m01_llama3_toy():
    rope = RopeConfig(10_000.0, "llama3", 8.0, 64, low_freq_factor=1.0, high_freq_factor=4.0)
    expected = [1, 0.0130422560, 0.00125, 0.000125]
    assert rope_frequencies(rope, 8).tolist() == pytest.approx(expected, rel=1e-6)


def test_m01_llama3_real_bounds():
    rope = RopeConfig(500_000.0, "llama3", 32.0, 8_192)
    plain = rope_frequencies(RopeConfig(500_000.0), 64)
    scaled = rope_frequencies(rope, 64)
    assert torch.equal(scaled[:15], plain[:15])
    torch.testing.assert_close(scaled[18:], plain[18:] / 32)
    assert all(plain[i] / 32 < scaled[i] < plain[i] for i in (15, 16, 17))
    assert float(plain[15]) == pytest.approx(0.0021311195, rel=1e-7)
    assert float(scaled[15]) == pytest.approx(0.0012905479, rel=1e-7)


def _base(rope: RopeConfig, head_dim: int, length: int) -> float:
    """The base that gives these frequencies: θ_1 = base^(-2/D)."""
    frequencies = rope_frequencies(rope, head_dim, torch.tensor([length]))
    return float(frequencies[0, 1] ** (-head_dim / 2))


def test_m02_dynamic_ntk():
    wide = RopeConfig(10_000.0, "dynamic", 2.0, 2_048)
    assert _base(wide, 64, 2_048) == pytest.approx(10_000)
    assert _base(wide, 64, 4_096) == pytest.approx(31_082.2367, rel=1e-6)
    narrow = RopeConfig(10_000.0, "dynamic", 2.0, 32)
    assert _base(narrow, 8, 64) == pytest.approx(43_267.4871, rel=1e-6)
    assert _base(narrow, 8, 8) == pytest.approx(10_000)


def test_m02_dynamic_ntk_keeps_no_state_and_rows_are_independent():
    rope = RopeConfig(10_000.0, "dynamic", 2.0, 32)
    short, long = torch.arange(8)[None], torch.arange(100)[None]
    first, _ = rope_tables(short, rope, 16)
    rope_tables(long, rope, 16)
    again, _ = rope_tables(short, rope, 16)
    assert torch.equal(first, again)
    padded = torch.full((1, 100), -1)
    padded[0, :8] = short
    both, _ = rope_tables(torch.cat([long, padded]), rope, 16)
    assert torch.equal(both[1, :, :8], first[0])


def test_m03_yarn():
    def frequencies(truncate: bool) -> list[float]:
        rope = RopeConfig(10_000.0, "yarn", 4.0, 64, truncate=truncate)
        return rope_frequencies(rope, 16).tolist()

    plain = rope_frequencies(RopeConfig(10_000.0), 16)
    expected = [1, 0.2371708245, 0.05, 0.0079056942]
    assert frequencies(True) == pytest.approx(expected + (plain[4:] / 4).tolist(), rel=1e-7)
    expected = [1, 0.1985835202, 0.0255952459, 0.0079056942]
    assert frequencies(False)[:4] == pytest.approx(expected, rel=1e-7)
    cos, _ = rope_tables(torch.tensor([[0]]), RopeConfig(10_000.0, "yarn", 4.0, 64), 16)
    assert float(cos[0, 0, 0, 0]) == pytest.approx(1.1386294361, rel=1e-7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rope_type": "mrope"}, "rope_type is 'mrope'"),
        ({"rope_type": "longrope", "short_factor": (1.0,)}, "short_factor has 1 entries"),
        ({"rope_theta": float("nan")}, "rope_theta is nan"),
        ({"rope_theta": -1.0}, "rope_theta is -1.0"),
        ({"rope_type": "linear", "factor": 0.5}, "factor is 0.5"),
        ({"rope_type": "yarn", "factor": 2.0}, "original_max_position_embeddings"),
        (
            {
                "rope_type": "llama3",
                "factor": 2.0,
                "original_max_position_embeddings": 64,
                "high_freq_factor": 1.0,
            },
            "high_freq_factor is 1.0",
        ),
    ],
)
def test_bad_rope_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RopeConfig(**arguments)


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
def test_every_stretch_lies_between_the_own_speed_and_a_quarter_of_it(kind):
    plain = rope_frequencies(RopeConfig(100_000.0), 64)
    scaled = rope_frequencies(RopeConfig(100_000.0, kind, 4.0, 8_192), 64)
    assert torch.equal(scaled[-1], plain[-1] / 4)
    assert bool(((plain / 4 <= scaled) & (scaled <= plain)).all())
    assert torch.equal(scaled[:8], plain[:8] / 4 if kind == "linear" else plain[:8])
