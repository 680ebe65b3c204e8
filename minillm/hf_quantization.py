"""Read the `quantization_config` of a config.json: how its weights are packed."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from minillm.families import Settings, or_default

Layout = Literal["gptq", "awq"]

SUPPORTED = "supported are gptq and awq, and auto-round in either of their layouts"
BITS = (4, 8)
# What the zero points of a layout are called, and how much is added to the stored ones.
GPTQ_FORMATS = {"gptq": 1, "gptq_v2": 0}
# The same for what auto-round calls its layouts, some with the kernel that was meant to run them.
AUTO_ROUND_LAYOUTS: dict[str, tuple[Layout, int]] = {
    "auto_round:auto_gptq": ("gptq", 1),
    "auto_round:auto_gptq:exllamav2": ("gptq", 1),
    "auto_round:gptq": ("gptq", 1),
    "auto_round:gptq:exllamav2": ("gptq", 1),
    "auto_round": ("gptq", 0),
    "auto_round:exllamav2": ("gptq", 0),
    "auto_round:gptqmodel": ("gptq", 0),
    "auto_round:auto_awq": ("awq", 0),
    "auto_round:awq": ("awq", 0),
}
# They subtract 1 from eight zero points at once, as from one 32-bit number, so that a zero point
# of 0 borrows from its neighbour. Adding 1 to all eight at once gives every one of them back.
BORROWING = ("gptqmodel", "auto-round")


@dataclass(frozen=True, slots=True)
class Packing:
    """How the files of a model hold its quantized weights.

    layout: "gptq" packs the codes of neighbouring inputs into a 32-bit word, "awq" those of
    neighbouring outputs. bits: 4 or 8. group_size: inputs that share a scale; -1 is all of them.
    symmetric: every zero point is 2^(bits-1).
    zero_offset: what is added to a stored zero point, 1 or 0.
    borrows: zero points were offset as whole words, see BORROWING.
    act_order: which group an input is in stands in the files.
    mixed: some layers have other bits and group sizes than these.
    """

    layout: Layout
    bits: int
    group_size: int
    symmetric: bool = False
    zero_offset: int = 0
    borrows: bool = False
    act_order: bool = False
    mixed: bool = False


def read_packing(settings: Settings) -> Packing | None:
    """What `quantization_config` says; None where there is none: the weights are plain numbers.

    Raises ValueError for a method or layout that minillm does not read, naming those that it does.
    Sources: transformers' GPTQConfig, AwqConfig and AutoRoundConfig; GPTQModel's QuantizeConfig.
    """
    config = settings.get("quantization_config")
    if config is None:
        return None
    if not isinstance(config, Mapping):
        raise ValueError(f"quantization_config is {config!r:.200}; an object is needed")
    try:
        return _packing_of(config)
    except ValueError as error:
        raise ValueError(f"quantization_config: {error}") from error


def _packing_of(config: Settings) -> Packing:
    method = _word(config, "quant_method")
    if method == "gptq":
        offset = GPTQ_FORMATS[_one_of(config, ("checkpoint_format", "format"), GPTQ_FORMATS)]
        return _packing(config, "gptq", offset)
    if method == "awq":
        if config.get("backend") == "llm-awq":
            raise ValueError("backend is 'llm-awq'; supported is version 'gemm'")
        _one_of(config, ("version", "format", "checkpoint_format"), ("gemm",))
        return _packing(config, "awq", 0)
    if method == "auto-round":
        return _auto_round(config)
    raise ValueError(f"quant_method is {config.get('quant_method')!r:.200}; {SUPPORTED}")


def _auto_round(config: Settings) -> Packing:
    """Its layouts are those of others, named in `packing_format` with a kernel behind."""
    for key in ("act_bits", "data_type", "rotation_config"):
        if config.get(key) not in (None, 16, 32, "int"):
            raise ValueError(f"{key} of auto-round is {config[key]!r:.200}; weights alone, as int")
    layout = AUTO_ROUND_LAYOUTS[_one_of(config, ("packing_format",), AUTO_ROUND_LAYOUTS)]
    return _packing(config, *layout)


def _packing(config: Settings, layout: Layout, zero_offset: int) -> Packing:
    """The settings that the methods share."""
    bits, size = config.get("bits"), or_default(config, "group_size", 128)
    if not isinstance(bits, int) or bits not in BITS:
        raise ValueError(f"bits is {bits!r:.200}; supported are 4 and 8")
    if isinstance(size, bool) or not isinstance(size, int) or not (size == -1 or size > 0):
        raise ValueError(f"group_size is {size!r:.200}; a positive whole number or -1 is needed")
    symmetric, act_order = _flag(config, "sym"), _flag(config, "desc_act")
    if config.get("pack_dtype") not in (None, "int32", "torch.int32"):
        raise ValueError(f"pack_dtype is {config['pack_dtype']!r:.200}; supported is int32")
    if _flag(config, "is_marlin_format"):
        raise ValueError("is_marlin_format is true; supported are the formats gptq and gptq_v2")
    written_by = str([config.get(key) for key in ("meta", "provider", "quant_method")]).lower()
    return Packing(
        layout=layout,
        bits=bits,
        group_size=size,
        symmetric=symmetric and layout == "gptq",
        zero_offset=zero_offset,
        borrows=any(name in written_by for name in BORROWING),
        act_order=act_order and layout == "gptq" and size != -1,
        mixed=bool(config.get("dynamic") or config.get("extra_config")),
    )


def _flag(config: Settings, key: str) -> bool:
    value = or_default(config, key, False)
    if not isinstance(value, bool):
        raise ValueError(f"{key} is {value!r:.200}; true or false is needed")
    return value


def _word(config: Settings, key: str, default: str = "") -> str:
    return str(or_default(config, key, default)).lower()


def _one_of(config: Settings, keys: tuple[str, ...], known: Collection[str]) -> str:
    """The value under any of the keys, which several tools name differently."""
    found = {_word(config, key) for key in keys if config.get(key) is not None} or {
        next(iter(known))
    }
    if len(found) > 1 or not found <= set(known):
        raise ValueError(
            f"{' / '.join(keys)} is {', '.join(sorted(found))!r:.200}; supported is "
            f"{' and '.join(known)}"
        )
    return found.pop()
