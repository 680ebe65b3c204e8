"""Models with random weights in the shapes of known ones: speed does not depend on the values."""

from dataclasses import dataclass

import torch

from minillm.config import LayerConfig, ModelConfig, RopeConfig
from minillm.model import Transformer
from minillm.quantization.int4 import quantize_groups
from minillm.quantization.linear import QuantizedLinear, put, quantizable

LLAMA3_ROPE = RopeConfig(
    rope_theta=500_000.0,
    rope_type="llama3",
    factor=32.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
)
# Weights per scale: one for a row of 8 bits, one for 128 columns of 4 bits.
GROUPS = {"int8": (8, -1), "int4": (4, 128)}


def llama(
    sizes: tuple[int, int, int, int, int, int], context: int, tied: bool, rope: RopeConfig
) -> ModelConfig:
    """A Llama of these sizes: V, C, F, L, H, K."""
    V, C, F, L, H, K = sizes
    return ModelConfig(
        vocab_size=V,
        hidden_size=C,
        intermediate_size=F,
        num_hidden_layers=L,
        num_attention_heads=H,
        num_key_value_heads=K,
        head_dim=C // H,
        max_position_embeddings=context,
        tie_word_embeddings=tied,
        layers=(LayerConfig(rope=rope),) * L,
    )


SHAPES = {
    "SmolLM2-135M": llama(
        (49_152, 576, 1_536, 30, 9, 3), 8_192, True, RopeConfig(rope_theta=100_000.0)
    ),
    "Llama-3.2-1B": llama((128_256, 2_048, 8_192, 16, 32, 8), 131_072, True, LLAMA3_ROPE),
    "Llama-2-7B": llama((32_000, 4_096, 11_008, 32, 32, 32), 4_096, False, RopeConfig()),
}
TINY = {"tiny": llama((64, 128, 128, 1, 2, 1), 64, False, RopeConfig())}


@dataclass(frozen=True, slots=True)
class Work:
    """How much is measured. rows: batches that are decoded; prompt, tokens: of each text.
    prefill: tokens of the prompt whose reading is timed. runs: how often each. warm: whether runs
    that do not count come first."""

    rows: tuple[int, ...] = (1, 8)
    prompt: int = 128
    tokens: int = 128
    prefill: int = 4_096
    runs: int = 5
    warm: bool = True


SMOKE = Work(rows=(1, 2), prompt=2, tokens=2, prefill=4, runs=1, warm=False)


def random_model(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Transformer:
    """A model with PyTorch's initial weights, made on the device."""
    before = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return Transformer(config).requires_grad_(False).eval()
    finally:
        torch.set_default_dtype(before)


def quantize(model: Transformer, kind: str) -> Transformer:
    """The same model on codes, "int8" or "int4"; made layer by layer, which saves memory."""
    bits, size = GROUPS[kind]
    for name, linear in quantizable(model).items():
        codes = quantize_groups(linear.weight, size, bits=bits, symmetric=bits == 8)
        put(model, name, QuantizedLinear(codes, linear.bias))
    return model


def weight_bytes(model: Transformer) -> int:
    """Bytes of weights that every step reads: layers, last norm and head, as they are stored."""
    head = getattr(model, "lm_head", model.embed_tokens)
    parts = (model.layers, model.norm, head)
    return sum(x.nbytes for part in parts for x in [*part.parameters(), *part.buffers()])
