"""Weights that a checkpoint packs into 32-bit words: GPTQ's and AWQ's layouts.

A linear layer X of C inputs and N outputs is held as four tensors, f = 32 / bits codes to a word:

- X.qweight, int32: the codes. GPTQ: (C/f, N), a word holds neighbouring inputs. AWQ: (C, N/f), a
  word holds neighbouring outputs, in the order of `AWQ_ORDER`.
- X.qzeros, int32, (G, N/f): zero points, a word holds neighbouring outputs, in AWQ in its order.
  GPTQ's first version of the format stores each less 1.
- X.scales, floating point, (G, N).
- X.g_idx, int32, (C,), GPTQ only and not always there: the group of each input.

Sources: GPTQ, arXiv:2210.17323, and AWQ, arXiv:2306.00978, for the methods; the layouts are those
of the AutoGPTQ, GPTQModel and AutoAWQ packages.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from minillm.hf_quantization import Packing
from minillm.kernels.reference import unpack_nibbles
from minillm.quantization.int4 import Quantized
from minillm.weights.file_tensor import FileTensor

# Column of a group of outputs that each code of an AWQ word belongs to, lowest bits first.
AWQ_ORDER = {4: (0, 2, 4, 6, 1, 3, 5, 7), 8: (0, 1, 2, 3)}
NEEDED = ("qweight", "qzeros", "scales")
SCALE_TYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """The weight of a layer, still packed, to be placed as floats or as whole numbers.

    name: the layer. bits: 4 or 8. parts: its tensors by the last part of their names.
    """

    name: str
    packing: Packing
    bits: int
    parts: Mapping[str, FileTensor]

    @property
    def shape(self) -> tuple[int, int]:
        """(N, C), as of the weight that it stands for."""
        rows, columns = self.parts["qweight"].shape
        per_word = 32 // self.bits
        if self.packing.layout == "awq":
            return columns * per_word, rows
        return columns, rows * per_word

    def is_floating_point(self) -> bool:
        """True: so is what it stands for."""
        return True

    def to(self, *, device: torch.device | str, dtype: torch.dtype, copy: bool = True) -> Tensor:
        """The weight, dequantized in float32 and rounded to `dtype`. Raises as `quantized`."""
        return self.quantized(device).dequantize().to(dtype)

    def quantized(self, device: torch.device | str) -> Quantized:
        """The numbers themselves; columns sorted by their group where `g_idx` mixes them.

        Scales are float16 where that holds them exactly, otherwise as in the file.
        Raises ValueError, naming the tensor, for scales that are not finite, and groups that are
        unequal or not there.
        """
        scales = self._scales(device)
        order = self._order(scales.shape[1])
        words = self.parts["qweight"].to(device=device, dtype=torch.int32, copy=True)
        if self.packing.layout == "awq":
            codes = self._in_order(unpack_words(words, self.bits)).t().contiguous()  # (N, C)
        else:
            codes = unpack_words(words.t().contiguous(), self.bits)  # (N, C)
        if order is not None:
            order = order.to(device)
            codes = codes[:, order]
        return Quantized(codes, scales, self._zeros(device), self.bits, order)

    def _scales(self, device: torch.device | str) -> Tensor:
        stored = self.parts["scales"]
        scales = stored.to(device=device, dtype=stored.dtype).t().contiguous()  # (N, G)
        if not bool(scales.isfinite().all()):
            raise ValueError(f"{self.name}.scales has values that are not finite")
        half = scales.to(torch.float16)
        return half if torch.equal(half.float(), scales.float()) else scales

    def _zeros(self, device: torch.device | str) -> Tensor:
        """Zero points, (N, G)."""
        words = self.parts["qzeros"].to(device=device, dtype=torch.int32)
        packing, top = self.packing, 2**self.bits - 1
        ones = 0xFFFFFFFF // top  # 1 in every field: 0x11111111 or 0x01010101
        stored = self._in_order(unpack_words(words, self.bits))
        if packing.symmetric and bool((stored == (top + 1) // 2).all()):
            # Some files are called `gptq`, but hold their zero points as `gptq_v2` does. Where
            # these are known, that shows (https://github.com/vllm-project/vllm/pull/38966).
            zeros = stored
        elif packing.zero_offset and packing.borrows:
            zeros = unpack_words(words + ones, self.bits)
        else:
            zeros = stored + packing.zero_offset & top
        return zeros.t().contiguous()

    def _in_order(self, values: Tensor) -> Tensor:
        """Values (…, N) of AWQ words with each group of outputs put in order; GPTQ's are."""
        if self.packing.layout == "gptq":
            return values
        place = torch.tensor(AWQ_ORDER[self.bits], device=values.device).argsort()
        return values.view(*values.shape[:-1], -1, len(place))[..., place].flatten(-2)

    def _order(self, groups: int) -> Tensor | None:
        """Columns sorted by their group; None where they lie so already."""
        if "g_idx" not in self.parts:
            return None
        group_of = self.parts["g_idx"].to(device="cpu", dtype=torch.int32).long()
        if int(group_of.min()) < 0 or int(group_of.max()) >= groups:
            raise ValueError(
                f"{self.name}.g_idx goes from {int(group_of.min())} to {int(group_of.max())}; "
                f"there are {groups} groups"
            )
        sizes = group_of.bincount(minlength=groups)
        if bool((sizes != sizes[0]).any()):
            raise ValueError(
                f"{self.name}.g_idx has groups of {int(sizes.min())} to {int(sizes.max())} inputs; "
                "only groups of one size are supported"
            )
        order = group_of.argsort(stable=True)
        return None if bool((order[1:] > order[:-1]).all()) else order


def unpack_words(words: Tensor, bits: int) -> Tensor:
    """The 32/bits codes of each word, lowest bits first.

    words: (…, n), int32. bits: 4 or 8. Returns (…, n·32/bits), uint8.

    >>> unpack_words(torch.tensor([0x76543210], dtype=torch.int32), 4).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    shifts = torch.tensor([0, 8, 16, 24], dtype=torch.int32, device=words.device)
    octets = (words[..., None] >> shifts & 255).to(torch.uint8).flatten(-2)
    return unpack_nibbles(octets) if bits == 4 else octets


def packed_weights(
    tensors: Mapping[str, FileTensor], packing: Packing | None
) -> dict[str, FileTensor | PackedTensor]:
    """The tensors of a checkpoint, with the parts of each packed weight X put together as X.weight.

    Reads no values. Raises ValueError, naming the tensor, for parts that are missing, of the wrong
    type, or whose shapes do not fit each other and the packing.
    """
    found: dict[str, FileTensor | PackedTensor] = {}
    layers: dict[str, dict[str, FileTensor]] = {}
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".")
        if part in (*NEEDED, "g_idx"):
            layers.setdefault(layer, {})[part] = tensor
        else:
            found[name] = tensor
    for layer, parts in layers.items():
        if packing is None:
            raise ValueError(
                f"{layer}.{next(iter(parts))} is part of a quantized weight, but config.json has "
                "no quantization_config"
            )
        if f"{layer}.weight" in tensors:
            raise ValueError(f"{layer}.weight stands there, and {layer}.{next(iter(parts))} too")
        found[f"{layer}.weight"] = _checked(layer, parts, packing)
    return found


def _checked(layer: str, parts: dict[str, FileTensor], packing: Packing) -> PackedTensor:
    """The parts as one tensor, if they fit each other."""
    needed = (*NEEDED, "g_idx") if packing.act_order else NEEDED
    if missing := [part for part in needed if part not in parts]:
        raise ValueError(f"{layer}.{missing[0]} is missing; the layer is quantized")
    for part, tensor in parts.items():
        allowed = SCALE_TYPES if part == "scales" else (torch.int32,)
        if tensor.dtype not in allowed:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
            raise ValueError(f"{layer}.{part} is {tensor.dtype}; {names} is needed")
        if len(tensor.shape) != (1 if part == "g_idx" else 2) or 0 in tensor.shape:
            raise ValueError(f"{layer}.{part} has the shape {tuple(tensor.shape)}")
    G, N = parts["scales"].shape
    bits = _bits(layer, parts, packing)
    packed = PackedTensor(layer, packing, bits, parts)
    C = packed.shape[1]
    if packed.shape[0] != N or parts["qzeros"].shape[0] != G:
        shapes = ", ".join(f"{part} {tuple(parts[part].shape)}" for part in NEEDED)
        raise ValueError(f"{layer}: the shapes do not fit each other with {bits} bits: {shapes}")
    size = C if packing.group_size == -1 else min(packing.group_size, C)
    if C % G or (G * size != C and not packing.mixed):
        raise ValueError(
            f"{layer}.scales has {G} groups for {C} inputs, group_size is {packing.group_size}; "
            "only groups of one size are supported"
        )
    if "g_idx" in parts and parts["g_idx"].shape != (C,):
        raise ValueError(f"{layer}.g_idx has {parts['g_idx'].shape[0]} entries for {C} inputs")
    return packed


def _bits(layer: str, parts: Mapping[str, FileTensor], packing: Packing) -> int:
    """Bits of a code, as the zero points show: N of them fill N·bits/32 words."""
    N, words = parts["scales"].shape[1], parts["qzeros"].shape[1]
    allowed = (4, 8) if packing.mixed else (packing.bits,)
    for bits in allowed:
        if words * 32 == N * bits:
            return bits
    raise ValueError(
        f"{layer}.qzeros has {words} words for {N} outputs; {' or '.join(map(str, allowed))} bits "
        "are supported, and a number of outputs that fills whole words"
    )
