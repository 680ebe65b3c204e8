"""`Scheme`: how the weights of a model are to be quantized."""

import math
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, get_args

# `minillm inspect` predicts sizes with this module, without torch, which takes seconds to load.
if TYPE_CHECKING:
    from torch import Tensor

    from minillm.quantization.int4 import Quantized

Method = Literal["int8", "int4", "gptq", "awq"]
# Methods that look at what a layer is given, so that they need a text to run through the model.
CALIBRATED = ("gptq", "awq")
# Tried in this order where no group size is given; 128 is what most published files have.
GROUP_SIZES = (128, 64, 32)


def check_bits(bits: int) -> None:
    """ValueError for a number of bits per code that is not a whole number from 2 to 8."""
    if isinstance(bits, bool) or not isinstance(bits, int) or not 2 <= bits <= 8:
        raise ValueError(f"bits is {bits!r}; a whole number from 2 to 8 is needed")


def check_group_size(group_size: int, *widths: int) -> None:
    """ValueError for a group size that does not divide every width; it names some that do."""
    if isinstance(group_size, bool) or not isinstance(group_size, int) or group_size < 1:
        raise ValueError(
            f"group_size is {group_size!r}; a whole number of columns is needed, or -1 for one "
            "group per row"
        )
    misfit = [width for width in sorted(widths) if width % group_size]
    if misfit:
        common = math.gcd(*widths)
        fit = [size for size in (32, 64, 96, 128, 192, 256) if common % size == 0]
        fit = fit or [size for size in range(min(common, 256), 0, -1) if common % size == 0][:4]
        raise ValueError(
            f"group_size is {group_size}, which does not divide the width of {misfit[0]} columns; "
            f"{', '.join(map(str, fit))} would, or -1 for one group per row"
        )


@dataclass(frozen=True, slots=True)
class Scheme:
    """How weights become whole numbers.

    method: "int8" rounds to 8 bits with one scale per row; "int4" rounds to 4 bits with a scale per
    group; "gptq" and "awq" do so too, but choose the codes or the scales with calibration text.
    bits: 2 to 8, and for "int8" 8. group_size: columns that share a scale; -1 is the whole row.
    symmetric: no zero points. act_order: GPTQ takes the columns with the largest inputs first.
    """

    method: Method
    bits: int
    group_size: int
    symmetric: bool
    act_order: bool = False

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise ValueError(
                f"quantize is {self.method!r}; known are {', '.join(get_args(Method))}"
            )
        check_bits(self.bits)
        if self.method == "int8" and self.bits != 8:
            raise ValueError(f"bits is {self.bits}; int8 has 8, and int4, gptq and awq take others")
        if self.group_size != -1:
            check_group_size(self.group_size)
        if self.act_order and self.method != "gptq":
            raise ValueError(f"act_order is for gptq; {self.method} takes no columns in turn")

    @classmethod
    def of(
        cls,
        method: str,
        widths: Collection[int],
        *,
        bits: int | None = None,
        group_size: int | None = None,
        symmetric: bool | None = None,
        act_order: bool = False,
    ) -> "Scheme":
        """The scheme of a method, with what is not given chosen for layers of these input widths.

        Raises ValueError for an unknown method, bits outside 2 … 8, or a group size that does not
        divide every width; it names sizes that do.
        """
        whole_rows = method == "int8"
        bits = (8 if whole_rows else 4) if bits is None else bits
        if group_size is None:
            fit = [size for size in GROUP_SIZES if all(width % size == 0 for width in widths)]
            group_size = -1 if whole_rows or not fit else fit[0]
        if group_size != -1:
            check_group_size(group_size, *widths)
        symmetric = whole_rows if symmetric is None else symmetric
        return cls(method, bits, group_size, symmetric, act_order)  # type: ignore[arg-type]

    @classmethod
    def on_load(
        cls, quantize: "str | Scheme", widths: Collection[int], group_size: int | None = None
    ) -> "Scheme":
        """The scheme that weights are rounded with as they are read, for layers of these widths.

        quantize: "int8" or "int4", or a scheme. Raises ValueError for a method that needs
        calibration text, and for what `of` refuses.
        """
        if isinstance(quantize, Scheme):
            if group_size not in (None, quantize.group_size):
                raise ValueError(f"group_size is {group_size!r}, but the scheme says {quantize}")
            given = cls.of(widths=widths, **asdict(quantize))
        else:
            given = cls.of(quantize, widths, group_size=group_size)
        if given.method in CALIBRATED:
            raise ValueError(
                f"quantize is {given.method!r}, which needs calibration text: "
                "`minillm quantize` writes such a model; int8 and int4 can be made on loading"
            )
        return given

    def round(self, weight: "Tensor") -> "Quantized":
        """The nearest codes, whatever the method: see `quantize_groups`."""
        from minillm.quantization.int4 import quantize_groups

        return quantize_groups(weight, self.group_size, bits=self.bits, symmetric=self.symmetric)
