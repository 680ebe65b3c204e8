"""How a model's weights are stored, in words."""

from torch import nn

from minillm.quantization.blocks import BlockEmbedding, BlockLinear
from minillm.quantization.linear import QuantizedLinear


def stored_as(model: nn.Module) -> str:
    """All forms in which there are weights: "float32", "INT4/bfloat16", "Q4_1/Q8_0/float32"."""
    coded, floats = set(), {str(x.dtype).removeprefix("torch.") for x in model.parameters()}
    for module in model.modules():
        if isinstance(module, BlockLinear | BlockEmbedding):
            coded.add(module.kind)
        elif isinstance(module, QuantizedLinear):
            coded.add(f"INT{module.bits}")
    return "/".join([*sorted(coded), *sorted(floats)])
