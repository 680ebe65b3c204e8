"""A slow reference for quantized keys and values, in numpy: one group at a time."""

import struct

import numpy as np


def bfloat16_below(number: float) -> float:
    """The largest bfloat16 not above a float32: its first 16 bits, one more for a negative rest."""
    (bits,) = struct.unpack(">I", struct.pack(">f", number))
    upper, rest = divmod(bits, 1 << 16)
    if rest and bits >> 31:
        upper += 1
    return float(struct.unpack(">f", struct.pack(">I", upper << 16))[0])


def round_trip_of_a_group(values: np.ndarray, bits: int) -> np.ndarray:
    """What a group's codes stand for; any shape, float32."""
    low = np.float32(bfloat16_below(float(values.min())))
    step = (values.max() - low) / np.float32(2**bits - 1)
    scale = np.float32(-bfloat16_below(-float(step)))
    if scale == 0:
        return np.full_like(values, low)
    codes = np.minimum(np.rint((values - low) / scale), np.float32(2**bits - 1))
    return np.asarray(codes * scale + low, dtype=np.float32)


def round_trip(x: np.ndarray, group: tuple[int, int], bits: int) -> np.ndarray:
    """The same for x (…, T, D), float32, in groups of so many tokens × channels."""
    out = np.empty_like(x)
    for lead in np.ndindex(x.shape[:-2]):
        for t in range(0, x.shape[-2], group[0]):
            for c in range(0, x.shape[-1], group[1]):
                one = (*lead, slice(t, t + group[0]), slice(c, c + group[1]))
                out[one] = round_trip_of_a_group(x[one], bits)
    return out
