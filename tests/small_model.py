"""A model of the real one's kind that takes milliseconds, for tests of many ways to store one."""

import torch

from minillm import LLM
from minillm.config import LayerConfig, ModelConfig
from minillm.model import Transformer
from minillm.tokenizer import Tokenizer


def small_config(vocab_size: int) -> ModelConfig:
    """Two layers; their linear layers have 2·128·128 + 2·64·128 + 3·192·128 weights in 896 rows."""
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2_048,
        layers=(LayerConfig(),) * 2,
        tie_word_embeddings=True,
    )


def small_llm(tokenizer: Tokenizer, vocab_size: int) -> LLM:
    """That model with random weights, the same each time."""
    torch.manual_seed(0)
    model = Transformer(small_config(vocab_size)).requires_grad_(False).eval()
    return LLM(model, tokenizer, name="small")
