"""What a model is made of, as data: `ModelConfig`.

The configuration holds *features* (is there a bias, how far does layer 3 see, how is it rotated),
never a family's name, so that one `Transformer` serves every family. `minillm.families` reads it
from a Hugging Face config.json.
"""

import json
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

RopeType = Literal["default", "linear", "dynamic", "yarn", "longrope", "llama3"]
QkNorm = Literal["none", "head", "whole"]
Norms = Literal["before", "after", "both"]
Activation = Literal["swiglu", "geglu"]

# A config.json is input from outside. These bounds are far above any real model, and low enough
# that building the (empty) modules takes well under a second.
MAX_LAYERS = 256
MAX_EXPERTS = 1024
MAX_SIZE = 2**31 - 1
MAX_PARAMETERS = 10**13


def _check_size(name: str, value: object, most: int = MAX_SIZE) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{name} is {value!r}; a whole number from 1 to {most:,} is needed")


def _check_positive(name: str, value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 1e-18 <= value <= 1e18:  # type: ignore[operator]  # NaN fails too
        raise ValueError(f"{name} is {value!r}; a number from 1e-18 to 1e18 is needed")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}; true or false is needed")


def _check_choice(name: str, value: object, choices: Any) -> None:
    if value not in get_args(choices):
        raise ValueError(f"{name} is {value!r}; known are {', '.join(get_args(choices))}")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding of a layer: its base, and how it is stretched past training.

    rope_theta: base of the wavelengths; pair i of D/2 turns by rope_theta^(-2i/D) radians a token.
    rope_type: how the frequencies are rescaled; see `minillm.layers.rope.rope_frequencies`.
    factor: the stretch (4.0 = four times the original length).
    original_max_position_embeddings: the trained length in tokens, before stretching.
    partial_rotary_factor: the share of each head that is rotated, from its first value on.
    short_factor, long_factor: what "longrope" divides each pair's frequency by, up to and past the
    trained length.
    """

    rope_theta: float = 10_000.0
    rope_type: RopeType = "default"
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True
    partial_rotary_factor: float = 1.0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _check_choice("rope_type", self.rope_type, RopeType)
        factors = ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow")
        for name in ("rope_theta", "partial_rotary_factor", *factors):
            _check_positive(name, getattr(self, name))
        for name in ("short_factor", "long_factor"):
            for value in getattr(self, name):
                _check_positive(name, value)
        if len(self.short_factor) != len(self.long_factor) or (
            self.rope_type == "longrope" and not self.short_factor
        ):
            raise ValueError(
                f"short_factor has {len(self.short_factor)} entries, long_factor "
                f"{len(self.long_factor)}; as many are needed, one for each pair"
            )
        if self.partial_rotary_factor > 1:
            raise ValueError(
                f"partial_rotary_factor is {self.partial_rotary_factor!r}; at most 1 is possible"
            )
        if self.rope_theta <= 1:
            raise ValueError(f"rope_theta is {self.rope_theta!r}; a base above 1 is needed")
        if self.rope_type != "default" and self.factor < 1:
            raise ValueError(f"RoPE factor is {self.factor!r}; 1 or more is needed")
        if self.attention_factor is not None:
            _check_positive("attention_factor", self.attention_factor)
        if self.rope_type == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor is {self.high_freq_factor!r}; more than low_freq_factor "
                f"({self.low_freq_factor!r}) is needed"
            )
        if self.original_max_position_embeddings is not None:
            _check_size("original_max_position_embeddings", self.original_max_position_embeddings)
            if self.rope_type == "longrope" and self.trained_length == 1:
                raise ValueError("original_max_position_embeddings is 1; longrope needs 2 or more")
        elif self.rope_type in ("dynamic", "yarn", "longrope", "llama3"):
            raise ValueError(f"rope_type {self.rope_type!r} needs original_max_position_embeddings")
        _check_flag("truncate", self.truncate)

    @property
    def switch_length(self) -> int | None:
        """The length past which "longrope" turns every token of a text by its other table."""
        switches = self.rope_type == "longrope" and self.short_factor != self.long_factor
        return self.original_max_position_embeddings if switches else None

    @property
    def attention_scale(self) -> float:
        """What cos and sin are multiplied by: scores grow by its square.

        The configuration's attention_factor; without one 0.1·ln(factor) + 1 for "yarn" and
        sqrt(1 + ln(factor) / ln(trained length)) for "longrope". 1 for every other type.
        """
        if self.rope_type not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.rope_type == "yarn":
            return 0.1 * math.log(self.factor) + 1
        return math.sqrt(1 + math.log(self.factor) / math.log(self.trained_length))

    @property
    def trained_length(self) -> int:
        """original_max_position_embeddings; 1 where it is not needed and not given."""
        return self.original_max_position_embeddings or 1

    def rotated(self, head_dim: int) -> int:
        """How many of a head's D values are rotated. ValueError where they do not make pairs."""
        count = int(head_dim * self.partial_rotary_factor)
        if count < 2 or count % 2 or len(self.short_factor) not in (0, count // 2):
            factors = f", with {len(self.short_factor)} factors" if self.short_factor else ""
            raise ValueError(
                f"head_dim is {head_dim}, partial_rotary_factor {self.partial_rotary_factor}: RoPE "
                f"would rotate {count} values of a head{factors}; pairs are needed, an even number "
                "of values, and a factor for each pair"
            )
        return count


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A feed-forward network of many experts, of which a router picks some for each token.

    num_experts: how many there are. num_experts_per_tok: how many run for one token.
    intermediate_size: `F` of each. norm_topk_prob: whether the weights of the chosen ones are
    divided by their sum.
    """

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    norm_topk_prob: bool = True

    def __post_init__(self) -> None:
        _check_size("num_experts", self.num_experts, MAX_EXPERTS)
        _check_size("num_experts_per_tok", self.num_experts_per_tok, self.num_experts)
        _check_size("intermediate_size of an expert", self.intermediate_size)
        _check_flag("norm_topk_prob", self.norm_topk_prob)


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What may differ from layer to layer.

    sliding_window: a token sees itself and sliding_window - 1 tokens before it; None sees all.
    sinks: so many first tokens of the text stay visible outside the window.
    rope: None for a layer without position information.
    experts: None for a layer with one dense feed-forward network.
    """

    sliding_window: int | None = None
    rope: RopeConfig | None = RopeConfig()
    sinks: int = 0
    experts: ExpertsConfig | None = None

    def __post_init__(self) -> None:
        if self.sliding_window is not None:
            _check_size("sliding_window", self.sliding_window)
        if self.sinks != 0:
            _check_size("sinks", self.sinks)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and features of a decoder-only Transformer. Attributes carry Hugging Face's names.

    Sizes: `V` vocab_size, `C` hidden_size, `F` intermediate_size, `L` num_hidden_layers,
    `H` num_attention_heads, `K` num_key_value_heads, `D` head_dim (not always C / H).
    `layers` holds one `LayerConfig` per layer.

    activation: what gates the feed-forward network, by its name in `Ops`.
    qk_norm: "head" normalises each query and key head, "whole" all heads of a token together.
    norms: a layer normalises what attention and MLP read ("before"), what they give ("after") or
    "both". norm_offset: is added to every norm's weight (Gemma stores weight - 1).
    embedding_scale: embeddings are multiplied by it.
    query_pre_attn_scalar: scores are divided by its square root; None means head_dim.
    Raises ValueError, quoting the value, for anything that does not fit together.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    layers: tuple[LayerConfig, ...]
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    activation: Activation = "swiglu"
    qk_norm: QkNorm = "none"
    norms: Norms = "before"
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    query_pre_attn_scalar: float | None = None

    def __post_init__(self) -> None:
        _check_size("num_hidden_layers", self.num_hidden_layers, MAX_LAYERS)
        for field in fields(self):
            if field.type is int:
                _check_size(field.name, getattr(self, field.name))
            elif field.type is bool:
                _check_flag(field.name, getattr(self, field.name))
            elif field.type in (Activation, QkNorm, Norms):
                _check_choice(field.name, getattr(self, field.name), field.type)
        for name in ("rms_norm_eps", "embedding_scale", "query_pre_attn_scalar"):
            if getattr(self, name) is not None or name == "rms_norm_eps":
                _check_positive(name, getattr(self, name))
        if self.norm_offset not in (0.0, 1.0):
            raise ValueError(f"norm_offset is {self.norm_offset!r}; 0 or 1 is needed")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads is {self.num_attention_heads} and num_key_value_heads "
                f"{self.num_key_value_heads}; the second must divide the first"
            )
        for rope in {layer.rope for layer in self.layers if layer.rope}:
            rope.rotated(self.head_dim)  # raises where head_dim does not fit
        if len(self.layers) != self.num_hidden_layers:
            raise ValueError(
                f"{len(self.layers)} layers are described, num_hidden_layers is "
                f"{self.num_hidden_layers}"
            )
        if self.num_parameters() > MAX_PARAMETERS:
            raise ValueError(
                f"the sizes make {self.num_parameters():,} parameters, vocab_size "
                f"{self.vocab_size} and hidden_size {self.hidden_size} among them; at most "
                f"{MAX_PARAMETERS:,} are possible"
            )

    def num_parameters(self) -> int:
        """Number of weights; a tied output head counts once."""
        C, D = self.hidden_size, self.head_dim
        q, kv = self.num_attention_heads * D, self.num_key_value_heads * D
        attention = C * (q + 2 * kv) + q * C
        attention += self.attention_bias * (q + 2 * kv) + self.attention_output_bias * C
        attention += {"none": 0, "head": 2 * D, "whole": q + kv}[self.qk_norm]
        norms = (4 if self.norms == "both" else 2) * C
        mlps = 0
        for layer in self.layers:
            if layer.experts is None:
                mlps += 3 * C * self.intermediate_size
                mlps += self.mlp_bias * (2 * self.intermediate_size + C)
            else:  # each with three matrices and a row of the router
                each = 3 * C * layer.experts.intermediate_size + C
                mlps += layer.experts.num_experts * each
        tables = (1 if self.tie_word_embeddings else 2) * self.vocab_size * C
        return tables + self.num_hidden_layers * (attention + norms) + mlps + C

    def cache_bytes_per_token(self, bytes_per_value: int) -> int:
        """Bytes that one token adds to the KV cache: 2 · L · K · D · bytes_per_value."""
        values = 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim
        return values * bytes_per_value

    @property
    def context(self) -> int | None:
        """The longest text in tokens; None where windows bound all distances, not the length.

        A "dynamic" RoPE reaches beyond max_position_embeddings, where it begins to stretch.
        """
        ropes = [layer.rope for layer in self.layers if layer.rope]
        factor = max((r.factor for r in ropes if r.rope_type == "dynamic"), default=1.0)
        trained = int(self.max_position_embeddings * factor)
        reach = [(layer.sliding_window or trained + 1) + layer.sinks for layer in self.layers]
        return trained if max(reach) > trained else None

    def with_window(
        self, window: int, *, sinks: int = 0, global_every: int | None = None
    ) -> "ModelConfig":
        """The same model with a window of so many tokens in every layer, and its first tokens kept.

        global_every: each global_every-th layer stays as it is (6: layers 5, 11, …, as in Gemma 3).
        Raises ValueError for a window or global_every below 1, or negative sinks.
        """
        _check_size("window", window)
        if global_every is not None:
            _check_size("global_every", global_every)
        every = global_every or self.num_hidden_layers + 1
        layers = [
            layer if i % every == every - 1 else replace(layer, sliding_window=window, sinks=sinks)
            for i, layer in enumerate(self.layers)
        ]
        return replace(self, layers=tuple(layers))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a model folder; ValueError names the file and the fault."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: a JSON object is needed, found {type(found).__name__}")
    return found
