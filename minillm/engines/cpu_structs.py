"""The structs of minillm/kernels/cpu/step.h and attention.h, field by field."""

from ctypes import POINTER, Structure, c_double, c_float, c_int32, c_int64, c_void_p

# What a step's time is measured by, as `Stage` in step.h has it, and the two stages of the head.
STAGES = ("embed", "norm", "qkv", "rope", "attention", "merge", "out", "gate_up", "down")
HEAD_STAGES = ("round", "head")


class Vector(Structure):
    """Numbers in memory, and their type; no data: there are none."""

    _fields_ = (("data", c_void_p), ("numbers", c_int32))


class Linear(Structure):
    """A packed weight and its bias."""

    _fields_ = (("weight", c_void_p), ("bias", Vector))


class Sight(Structure):
    """What queries see: a window (0: all) and sinks."""

    _fields_ = (("window", c_int64), ("sinks", c_int64))


class Layer(Structure):
    """The weights of one layer."""

    LINEARS = ("q", "k", "v", "o", "gate", "up", "down")
    NORMS = ("attention_in", "q_norm", "k_norm", "attention_out", "mlp_in", "mlp_out")
    _fields_ = (
        *((name, Linear) for name in LINEARS),
        *((name, Vector) for name in NORMS),
        ("sight", Sight),
        ("rope", c_int64),
    )


class Model(Structure):
    """A model's weights and features."""

    _fields_ = (
        ("layers", POINTER(Layer)),
        *((name, c_int64) for name in ("num_layers", "H", "K", "D", "C", "F")),
        ("embedding", c_void_p),
        ("embedding_blocks", c_void_p),
        ("embedding_row_bytes", c_int64),
        ("norm", Vector),
        ("embedding_kind", c_int32),
        ("gelu", c_int32),
        ("whole_norm", c_int32),
        *((name, c_float) for name in ("eps", "norm_offset", "query_scale", "embedding_scale")),
    )


class Rope(Structure):
    """Tables of cosines and sines."""

    _fields_ = (("cos", c_void_p), ("sin", c_void_p), ("pairs", c_int64), ("by_token", c_int64))


class Store(Structure):
    """The keys, or the values, of a layer's cache."""

    _fields_ = tuple((name, c_void_p) for name in ("exact", "codes", "scales", "minima"))


class LayerCache(Structure):
    """The cache of one layer."""

    _fields_ = (
        ("keys", Store),
        ("values", Store),
        *((name, c_int64) for name in ("ring", "sinks", "places", "blocks")),
    )


class CacheForm(Structure):
    """How all layers of a cache store keys and values."""

    _fields_ = (
        ("numbers", c_int32),
        ("bits", c_int32),
        ("value_channels", c_int64),
        ("key_channels", c_int64),
    )


class Step(Structure):
    """The tokens of one step, where they go, and where the result is to be written."""

    _fields_ = (
        *((name, c_int64) for name in ("N", "B", "longest", "longest_after")),
        *((name, c_void_p) for name in ("ids", "rows", "positions", "starts", "before")),
        ("ropes", POINTER(Rope)),
        ("form", POINTER(CacheForm)),
        ("caches", POINTER(LayerCache)),
        ("hidden", c_void_p),
        ("seconds", POINTER(c_double)),
        ("threads", c_int64),
    )
