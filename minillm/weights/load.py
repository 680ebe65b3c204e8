"""From a model folder to a `Transformer` that runs: names and shapes checked, weights in place."""

from collections.abc import Mapping

import torch
from torch import Tensor

from minillm.config import ModelConfig
from minillm.model import Transformer


def load_transformer(
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Transformer:
    """Build the model of `config` around these tensors, named as in a Hugging Face checkpoint.

    A tensor that has the right dtype and device already is used as it is: nothing is copied, a
    memory-mapped file stays on the disk until a page of it is read.
    Raises ValueError that names every missing, unexpected or wrongly shaped tensor, before
    memory for any weight is allocated.
    """
    with torch.device("meta"):  # shapes only, no storage
        model = Transformer(config)
    wanted = model.state_dict()
    found = _rename(config, weights)
    problems = [f"missing: {name}" for name in wanted.keys() - found.keys()]
    problems += [f"unexpected: {name}" for name in found.keys() - wanted.keys()]
    for name in sorted(wanted.keys() & found.keys()):
        tensor, shape = found[name], tuple(wanted[name].shape)
        if tuple(tensor.shape) != shape:
            problems.append(f"{name} is {tuple(tensor.shape)}, the configuration says {shape}")
        elif not tensor.is_floating_point():
            problems.append(f"{name} is {tensor.dtype}, a floating-point type is needed")
    if problems:
        more = f" (and {len(problems) - 8} more)" if len(problems) > 8 else ""
        raise ValueError("weights do not fit: " + "; ".join(sorted(problems)[:8]) + more)
    placed = {name: tensor.to(device=device, dtype=dtype) for name, tensor in found.items()}
    model.load_state_dict(placed, assign=True)
    return model.requires_grad_(False).eval()


def _rename(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Checkpoint names → our names: the leading `model.` goes; what is derived is left out."""
    found = {
        name.removeprefix("model."): tensor
        for name, tensor in weights.items()
        if not name.endswith("rotary_emb.inv_freq")  # old checkpoints store the RoPE table
    }
    if config.tie_word_embeddings and "lm_head.weight" in found:
        # A tied head may be stored a second time, but not with other values.
        head, table = found.pop("lm_head.weight"), found.get("embed_tokens.weight")
        if table is None or head.shape != table.shape or not torch.equal(head, table):
            raise ValueError(
                "weights do not fit: lm_head.weight differs from the embedding, but "
                "tie_word_embeddings is true"
            )
    return found
