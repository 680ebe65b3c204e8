"""From a model to the tensors of a checkpoint, as its family names them: the way back."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from minillm.families import checkpoint_names
from minillm.model import Transformer
from minillm.quantization.blocks import BlockEmbedding, BlockLinear
from minillm.quantization.linear import CodedLinear
from minillm.weights.pack import PARTS, pack_part, quantization_config


class Checkpoint(Mapping[str, Tensor]):
    """The tensors of a model as its family's checkpoints name them.

    What they hold as one tensor is put together when it is asked for. The weight of a quantized
    layer X is packed then, in the layout of GPTQ: X.qweight, X.qzeros, X.scales and X.g_idx.
    quantization_config: what config.json has to say of it; None for a model of plain weights.
    Raises ValueError for quantized layers that this layout cannot express.
    """

    def __init__(self, model: Transformer, model_type: str) -> None:
        if any(isinstance(module, BlockLinear | BlockEmbedding) for module in model.modules()):
            raise ValueError(
                "weights are blocks of a GGUF file, which no other file can hold; load the model "
                "without quantize='gguf' to save it"
            )
        layers = {n: m for n, m in model.named_modules() if isinstance(m, CodedLinear)}
        self.quantization_config = quantization_config(model, layers)
        self._held: dict[str, Tensor | CodedLinear] = {}
        for name, tensor in model.state_dict().items():
            layer, _, part = name.rpartition(".")
            if layer in layers and part != "bias":
                self._held[f"{layer}.weight"] = layers[layer]
            else:
                self._held[name] = tensor
        self._names: dict[str, list[str]] = {}
        for name, held in checkpoint_names(model_type, self._held).items():
            layer = name.removesuffix(".weight")
            packed = isinstance(self._held[held[0]], CodedLinear)
            self._names |= {f"{layer}.{x}": held for x in PARTS} if packed else {name: held}

    def __getitem__(self, name: str) -> Tensor:
        held = [self._held[part] for part in self._names[name]]
        tensors = [part for part in held if isinstance(part, Tensor)]
        if not tensors:
            return pack_part(name, held, self.quantization_config)
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
