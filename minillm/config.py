"""What a model is made of, as data: `ModelConfig`, read from a Hugging Face config.json.

The configuration holds *features* (is there a bias, how far does layer 3 see, how is it rotated),
never a family's name, so that one `Transformer` serves every family. A family is one row in
`FAMILIES`: the features that its config.json leaves unsaid.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

RopeType = Literal["default", "linear", "dynamic", "yarn", "llama3"]
QkNorm = Literal["none", "head"]

# A config.json is input from outside. These bounds are far above any real model, and low enough
# that building the (empty) modules takes well under a second.
MAX_LAYERS = 256
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


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding of a layer: its base, and how it is stretched past training.

    rope_theta: base of the wavelengths; pair i of D/2 turns by rope_theta^(-2i/D) radians a token.
    rope_type: how the frequencies are rescaled; see `minillm.layers.rope.rope_frequencies`.
    factor: the stretch (4.0 = four times the original length).
    original_max_position_embeddings: the trained length in tokens, before stretching.
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

    def __post_init__(self) -> None:
        if self.rope_type not in get_args(RopeType):
            allowed = ", ".join(get_args(RopeType))
            raise ValueError(f"rope_type is {self.rope_type!r}; known are {allowed}")
        factors = ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow")
        for name in ("rope_theta", *factors):
            _check_positive(name, getattr(self, name))
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
        elif self.rope_type in ("dynamic", "yarn", "llama3"):
            raise ValueError(f"rope_type {self.rope_type!r} needs original_max_position_embeddings")
        _check_flag("truncate", self.truncate)


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What may differ from layer to layer.

    sliding_window: a token sees itself and sliding_window - 1 tokens before it; None sees all.
    sinks: so many first tokens of the text stay visible outside the window.
    rope: None for a layer without position information.
    """

    sliding_window: int | None = None
    rope: RopeConfig | None = RopeConfig()
    sinks: int = 0

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
    `layers` holds one `LayerConfig` per layer; `qk_norm` "head" normalises each query and key head.
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
    qk_norm: QkNorm = "none"

    def __post_init__(self) -> None:
        _check_size("num_hidden_layers", self.num_hidden_layers, MAX_LAYERS)
        for field in fields(self):
            if field.type is int:
                _check_size(field.name, getattr(self, field.name))
            elif field.type is bool:
                _check_flag(field.name, getattr(self, field.name))
        _check_positive("rms_norm_eps", self.rms_norm_eps)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads is {self.num_attention_heads} and num_key_value_heads "
                f"{self.num_key_value_heads}; the second must divide the first"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}; RoPE rotates pairs: it must be even")
        if len(self.layers) != self.num_hidden_layers:
            raise ValueError(
                f"{len(self.layers)} layers are described, num_hidden_layers is "
                f"{self.num_hidden_layers}"
            )
        if self.qk_norm not in get_args(QkNorm):
            raise ValueError(f"qk_norm is {self.qk_norm!r}; known are none, head")
        if self.num_parameters() > MAX_PARAMETERS:
            raise ValueError(
                f"the sizes make {self.num_parameters():,} parameters, vocab_size "
                f"{self.vocab_size} and hidden_size {self.hidden_size} among them; at most "
                f"{MAX_PARAMETERS:,} are possible"
            )

    def num_parameters(self) -> int:
        """Number of weights; a tied output head counts once."""
        q, kv = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        attention = self.hidden_size * (q + 2 * kv) + q * self.hidden_size
        attention += self.attention_bias * (q + 2 * kv)
        attention += self.attention_output_bias * self.hidden_size
        attention += (self.qk_norm == "head") * 2 * self.head_dim
        mlp = 3 * self.hidden_size * self.intermediate_size
        mlp += self.mlp_bias * (2 * self.intermediate_size + self.hidden_size)
        block = attention + mlp + 2 * self.hidden_size
        tables = (1 if self.tie_word_embeddings else 2) * self.vocab_size * self.hidden_size
        return tables + self.num_hidden_layers * block + self.hidden_size

    def cache_bytes_per_token(self, bytes_per_value: int) -> int:
        """Bytes that one token adds to the KV cache: 2 · L · K · D · bytes_per_value."""
        values = 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim
        return values * bytes_per_value

    @property
    def context(self) -> int | None:
        """The longest text in tokens; None where windows bound all distances, not the length."""
        trained = self.max_position_embeddings
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

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "ModelConfig":
        """Read the contents of a config.json, in the spelling of transformers 4 or 5.

        Raises ValueError for a missing key, a value out of range, or a feature that minillm lacks:
        a model is refused by name, never run wrongly.
        """
        family = FAMILIES.get(str(config.get("model_type")))
        if family is None:
            known = ", ".join(FAMILIES)
            raise ValueError(f"model_type is {config.get('model_type')!r}; known are {known}")
        _refuse_unsupported(config)
        hidden, heads = _required(config, "hidden_size"), _required(config, "num_attention_heads")
        _check_size("hidden_size", hidden)
        _check_size("num_attention_heads", heads)
        num_layers = _required(config, "num_hidden_layers")
        _check_size("num_hidden_layers", num_layers, MAX_LAYERS)
        biased = config.get("attention_bias", family.attention_bias)
        return cls(
            vocab_size=_required(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_required(config, "intermediate_size"),
            num_hidden_layers=num_layers,
            num_attention_heads=heads,
            # Absent means multi-head attention: as many key/value heads as query heads.
            num_key_value_heads=_or_default(config, "num_key_value_heads", heads),
            head_dim=_or_default(config, "head_dim", hidden // heads),
            max_position_embeddings=_required(config, "max_position_embeddings"),
            layers=tuple(_layer(config, family, index) for index in range(num_layers)),
            rms_norm_eps=_or_default(config, "rms_norm_eps", 1e-6),
            tie_word_embeddings=_or_default(config, "tie_word_embeddings", False),
            attention_bias=biased,
            attention_output_bias=biased if family.bias_on_output else False,
            mlp_bias=_or_default(config, "mlp_bias", False),
            qk_norm=family.qk_norm,
        )


@dataclass(frozen=True, slots=True)
class Family:
    """What a model family's code fixes and its config.json leaves unsaid."""

    attention_bias: bool = False
    bias_on_output: bool = True
    qk_norm: QkNorm = "none"
    # "none": a sliding_window in the file means nothing. "flag": Qwen always writes one, which
    # counts only where use_sliding_window is true, and from layer max_window_layers on.
    window: Literal["none", "always", "flag"] = "none"


FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(window="always"),
    "qwen2": Family(attention_bias=True, bias_on_output=False, window="flag"),
    "qwen3": Family(qk_norm="head", window="flag"),
}


def _required(config: Mapping[str, Any], key: str) -> Any:
    if config.get(key) is None:
        raise ValueError(f"config.json has no {key!r}")
    return config[key]


def _or_default(config: Mapping[str, Any], key: str, default: Any) -> Any:
    value = config.get(key)
    return default if value is None else value


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    """Raise for a feature that would change the result and that minillm does not compute."""
    activation = _or_default(config, "hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ValueError(f"hidden_act is {activation!r}; supported is silu")
    if config.get("quantization_config") is not None:
        raise ValueError("quantization_config is set; quantized checkpoints are not supported")
    if _or_default(config, "partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(
            f"partial_rotary_factor is {config['partial_rotary_factor']!r}; supported is 1.0"
        )


def _rope(config: Mapping[str, Any], layer_type: str) -> RopeConfig:
    """The RoPE of a layer: `rope_parameters` (transformers 5) or `rope_theta` + `rope_scaling`."""
    found = config.get("rope_parameters")
    if isinstance(found, Mapping) and isinstance(found.get(layer_type), Mapping):
        found = found[layer_type]
    if found is None:
        found = config.get("rope_scaling")
    if found is not None and not isinstance(found, Mapping):
        raise ValueError(f"rope_parameters / rope_scaling is {found!r}; an object is needed")
    values = dict(found or {})
    values.setdefault("rope_theta", _or_default(config, "rope_theta", 10_000.0))
    # The older spelling of the key is `type`.
    rope_type = values.get("rope_type", values.get("type", "default"))
    if _or_default(values, "partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(
            f"partial_rotary_factor is {values['partial_rotary_factor']!r}; supported is 1.0"
        )
    if values.get("mscale") is not None or values.get("mscale_all_dim") is not None:
        raise ValueError("YaRN with mscale or mscale_all_dim is not supported")
    original = values.get("original_max_position_embeddings")
    if original is None and rope_type in ("dynamic", "yarn"):
        original = config.get("max_position_embeddings")
    named = {f.name: values[f.name] for f in fields(RopeConfig) if values.get(f.name) is not None}
    if rope_type != "default" and "factor" not in named:
        raise ValueError(f"rope_type {rope_type!r} needs a factor")
    named |= {"rope_type": rope_type, "original_max_position_embeddings": original}
    return RopeConfig(**named)


def _layer(config: Mapping[str, Any], family: Family, index: int) -> LayerConfig:
    """Window and RoPE of layer `index`, from `layer_types` or from one `sliding_window` for all."""
    layer_types = config.get("layer_types")
    window = config.get("sliding_window")
    flagged = family.window == "flag"
    if family.window == "none" or (flagged and not config.get("use_sliding_window", False)):
        window = None
    if layer_types is None:
        first_local = config.get("max_window_layers", 0) if flagged else 0
        if isinstance(first_local, bool) or not isinstance(first_local, int):
            raise ValueError(f"max_window_layers is {first_local!r}; a whole number is needed")
        layer_type = "full_attention"
        if window is not None and index >= first_local:
            layer_type = "sliding_attention"
    else:
        if not isinstance(layer_types, list) or len(layer_types) != config["num_hidden_layers"]:
            raise ValueError("layer_types must be a list with one entry per layer")
        layer_type = layer_types[index]
    if layer_type == "full_attention":
        window = None
    elif layer_type != "sliding_attention":
        raise ValueError(
            f"layer_types[{index}] is {layer_type!r}; supported are full_attention and "
            "sliding_attention"
        )
    elif window is None:
        raise ValueError(f"layer_types[{index}] is sliding_attention without a sliding_window")
    return LayerConfig(sliding_window=window, rope=_rope(config, layer_type))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a model folder; ValueError names the file and the fault."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: a JSON object is needed, found {type(found).__name__}")
    return found
