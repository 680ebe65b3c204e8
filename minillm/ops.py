"""`Ops`: the functions that a Transformer is made of, and how a backend replaces them."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from minillm.layers.attention import attention
from minillm.layers.mlp import geglu, swiglu
from minillm.layers.norm import rms_norm
from minillm.layers.rope import apply_rope


@dataclass(frozen=True, slots=True)
class Ops:
    """The pure functions of one Transformer. The defaults, in `minillm.layers`, are the reference.

    A backend is another `Ops`, and so is a reader's own function:
    `llm.model.ops = dataclasses.replace(llm.model.ops, attention=mine)`. Nothing global changes.

    attention(q, k, v, mask) · rms_norm(x, weight, eps) · rope(x, cos, sin) · swiglu(gate, up) ·
    geglu(gate, up)
    """

    attention: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor] = attention
    rms_norm: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
    rope: Callable[[Tensor, Tensor, Tensor], Tensor] = apply_rope
    swiglu: Callable[[Tensor, Tensor], Tensor] = swiglu
    geglu: Callable[[Tensor, Tensor], Tensor] = geglu
