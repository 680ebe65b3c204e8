"""Models with quantized layers, and what they compute."""

import torch

from minillm.config import LayerConfig, ModelConfig
from minillm.kv_cache import new_cache
from minillm.model import Transformer
from minillm.quantization.int4 import quantize_groups
from minillm.quantization.linear import QuantizedLinear, put, quantizable


class NoTokenizer:
    def save(self, path):
        path.write_text("{}")


def one_layer(width=32, inner=64):
    """A Llama of one layer."""
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=104,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=width // 4,
        max_position_embeddings=64,
        layers=(LayerConfig(),),
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        attention_bias=True,
        attention_output_bias=True,
        mlp_bias=False,
        activation="swiglu",
    )
    return Transformer(config).requires_grad_(False).eval()


def quantize_all(model, **options):
    """Every layer rounded; in groups of a random order where act_order asks for that."""
    act_order = options.pop("act_order", False)
    for name, linear in quantizable(model).items():
        weight = linear.weight.detach()
        # As act-order does it: layers with the same inputs take these in the same order.
        generator = torch.Generator().manual_seed(weight.shape[1])
        order = torch.randperm(weight.shape[1], generator=generator) if act_order else None
        quantized = quantize_groups(weight if order is None else weight[:, order], **options)
        put(model, name, QuantizedLinear(quantized._replace(order=order), linear.bias))
    return model


def logits(model, ids):
    cache = new_cache(model.config, *ids.shape, dtype=torch.float32, device=torch.device("cpu"))
    lengths = torch.full((len(ids),), ids.shape[1])
    return model.logits(model(ids, cache, lengths=lengths))
