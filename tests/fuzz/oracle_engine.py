"""Compare the C++ engine's logits with those of the modules, on whatever damaged model loads."""

import copy
from pathlib import Path

import torch
from torch import Tensor, nn

from minillm.engines import accelerate
from minillm.engines.base import Accelerated
from minillm.kernels import cpu
from minillm.kernels.reference import dequantize_blocks, quantize_blocks
from minillm.kv_cache import new_cache
from minillm.llm import LLM
from minillm.model import Transformer
from minillm.quantization.linear import QuantizedLinear
from minillm.sampling import SamplingParams
from tests.fuzz.tables import WrongError

# Tokens of a prompt, and steps of one token after it: past the windows of 9.
PROMPT, STEPS = 8, 6
# Relative to the largest logit. Rounding to 8 bits may tip either way at a tie.
FLOATS, CODES = 1e-3, 5e-2
# Sums of such numbers are not the same in any two orders.
LARGEST = 1e6


def same_engine(llm: LLM) -> str:
    """The engine agrees with the modules, in a prompt and then token by token."""
    if reason := cpu.why_not():
        return f"no engine: {reason}"
    model = rounding_inputs(llm.model)
    try:
        fast = accelerate(copy.deepcopy(llm.model), "cpu")
    except ValueError as reason:
        return f"no engine: {reason}"
    ids = [(7 * i + 3) % llm.config.vocab_size for i in range(PROMPT + STEPS)]
    expected, found = logits(model, ids), logits(fast, ids)
    finite = bool(expected.isfinite().all())
    if not finite or expected.abs().max() > LARGEST:
        return f"no engine: logits up to {float(expected.abs().max()):.1e}"
    if not found.isfinite().all():
        raise WrongError("the engine's logits are not finite, the modules' are")
    coded = any(isinstance(m, QuantizedLinear) for m in llm.model.modules())
    off = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
    if off > (CODES if coded else FLOATS):
        raise WrongError(f"the engine's logits are off by {off:.1e} of the largest")
    return f"the engine's logits are off by {off:.0e}"


def blocks_run(path: Path) -> str:
    """A damaged GGUF file run on its blocks ends in text or in a message, as any other way."""
    try:
        llm = LLM.from_pretrained(path, device="cpu", quantize="gguf", backend="auto")
        llm.generate([1, 2, 3], SamplingParams(max_new_tokens=2))
    except ValueError as reason:
        return f"on blocks: {str(reason)[-80:]}"
    engine = isinstance(llm.model, Accelerated)
    return f"runs on its blocks, {'in C++' if engine else 'on the modules'}"


def rounding_inputs(model: Transformer) -> Transformer:
    """The modules with the inputs of coded layers rounded, as the engine rounds them."""
    copied = copy.deepcopy(model)

    def rounded(module: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        return dequantize_blocks(*quantize_blocks(inputs[0])).to(inputs[0].dtype)

    for module in copied.modules():
        if isinstance(module, QuantizedLinear) and module.in_features % 32 == 0:
            module.register_forward_pre_hook(rounded)
    return copied


@torch.inference_mode()
def logits(model: Transformer, ids: list[int]) -> Tensor:
    """Logits of the last PROMPT + STEPS positions, (T, V): a prompt at once, then one by one."""
    cache = new_cache(model.config, 1, len(ids))
    chunks = [ids[:PROMPT], *([token] for token in ids[PROMPT:])]
    # With the length of all, so that a RoPE that depends on it turns every token alike.
    lengths = torch.tensor([len(ids)])
    hidden = [model(torch.tensor([chunk]), cache, lengths=lengths)[0] for chunk in chunks]
    return model.logits(torch.cat(hidden)).float()
