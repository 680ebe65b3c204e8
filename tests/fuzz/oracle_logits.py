"""Compare the logits of a damaged model with those that transformers computes from its files."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from minillm.llm import LLM
from minillm.weights.checkpoint import Checkpoint
from tests.fuzz.packed_back import is_packed, plain_weights, unpacked
from tests.fuzz.tables import WrongError, difference, folder_tensors

LENGTH = 40  # past the windows of 9 and the original RoPE lengths of 16 and 32
# Relative to the largest logit. Where values were damaged, rounding errors may grow.
TOLERANCE, DAMAGED_TOLERANCE = 1e-3, 1e-2
# Settings that transformers reads without listing them among a family's own.
OLD_KEYS = {"rope_scaling", "rope_theta", "rope_local_base_freq", "partial_rotary_factor"}
OLD_KEYS |= {"head_dim", "num_experts", "num_local_experts", "sliding_window_pattern", "model_type"}
OLD_KEYS |= {"quantization_config"}
# What transformers checks and no forward pass in float32 depends on.
NO_FEATURES = {"architectures", "attention_dropout", "dtype", "initializer_range", "use_cache"}
NO_FEATURES |= {"output_router_logits", "router_aux_loss_coef", "torch_dtype"}
NO_FEATURES |= {"embd_pdrop", "resid_pdrop", "transformers_version"}


class RefusalError(WrongError):
    """transformers does not compute what minillm did."""


def same_logits(llm: LLM, folder: Path, undamaged: LLM, base: Path) -> str:
    """Compare with transformers, which reads the damaged config.json and weights itself.

    It gets packed weights unpacked, and minillm must write them as it read them.
    """
    tensors = difference(folder_tensors(base), folder_tensors(folder))
    tolerance = tolerance_for(tensors)
    packed = plain_weights(folder) if is_packed(folder) else None
    whole = json.loads((base / "config.json").read_bytes())
    settings = model_settings(folder, whole)
    with tempfile.TemporaryDirectory() as temporary:
        clean = Path(temporary)
        if packed is None:
            copy_weights(folder, clean)
        else:
            save_file(packed, clean / "model.safetensors", metadata={"format": "pt"})
            for described in (settings, whole):
                described.pop("quantization_config", None)
        (clean / "config.json").write_text(json.dumps(settings))
        try:
            result = compare_logits(llm, clean, tolerance)
        except RefusalError as error:
            # What transformers cannot read must have counted for nothing.
            if llm.config != undamaged.config:
                raise WrongError(str(error)) from error
            (clean / "config.json").write_text(json.dumps(whole))
            result = f"no other feature, {compare_logits(llm, clean, tolerance)}"
    written = "" if packed is None else written_again(llm, packed)
    return f"{tensors}: {result}{written}"


def written_again(llm: LLM, weights: dict[str, Tensor]) -> str:
    """What minillm would write must stand for the same weights."""
    assert llm.source is not None
    try:
        written = Checkpoint(llm.model, llm.source.settings["model_type"])
        again = unpacked(dict(written), written.quantization_config)
    except ValueError as error:
        return f", not written: {str(error).partition(';')[0]}"
    for name, tensor in again.items():
        before = weights.get(name, weights.get(name.removeprefix("model.")))
        if (
            before is None
            or before.shape != tensor.shape
            or not torch.allclose(before.float(), tensor.float(), 0, 0, equal_nan=True)
        ):
            raise WrongError(f"{name} is another when it is written")
    return ", written again as they were"


def copy_weights(folder: Path, clean: Path) -> None:
    """Copy safetensors files, and of their index what says where tensors are."""
    for path in folder.glob("*.safetensors"):
        if path.is_file():
            shutil.copyfile(path, clean / path.name)
    if (index := folder / "model.safetensors.index.json").exists():
        placed = {"weight_map": json.loads(index.read_bytes())["weight_map"], "metadata": {}}
        (clean / index.name).write_text(json.dumps(placed))


def tolerance_for(tensors: str) -> float:
    """How far logits may differ, by what became of the tensors."""
    return TOLERANCE if tensors == "the same tensors" else DAMAGED_TOLERANCE


def model_settings(folder: Path, whole: dict[str, Any]) -> dict[str, Any]:
    """config.json without what is no feature of its family: other keys, and ids of tokens.

    whole: the undamaged one.
    """
    from transformers import AutoConfig

    damaged = json.loads((folder / "config.json").read_bytes())
    left_out = NO_FEATURES | {key for key in damaged if key.endswith("_token_id")}
    if isinstance(damaged.get("no_rope_layers"), list):  # which leaves nothing to an interval
        left_out.add("no_rope_layer_interval")
    settings = {key: damaged[key] for key in damaged if key not in left_out}
    try:
        known = AutoConfig.for_model(settings["model_type"]).to_dict().keys() | OLD_KEYS
    except (KeyError, TypeError, ValueError):
        return settings
    if type(settings.get("rms_norm_eps")) is int:  # a whole number is one too
        settings["rms_norm_eps"] = float(settings["rms_norm_eps"])
    if "num_local_experts" in settings:  # the newer name of the same
        settings.pop("num_experts", None)
    ids = {key: whole[key] for key in whole if key.endswith("_token_id")}
    return {key: settings[key] for key in settings if key in known} | ids


def compare_logits(llm: LLM, folder: Path, tolerance: float) -> str:
    """Compare with what transformers computes from this folder."""
    from transformers import AutoConfig, AutoModelForCausalLM

    ids = [5 + i for i in range(min(LENGTH, llm.config.context or LENGTH))]
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=AutoConfig.from_pretrained(folder, local_files_only=True),
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
            local_files_only=True,
            output_loading_info=True,
        )
        theirs = their_logits(model.eval(), ids)
    except Exception as error:
        reason = f"transformers refuses it: {type(error).__name__}: {str(error)[:300]}"
        raise RefusalError(reason) from error
    if problems := {key: value for key, value in info.items() if value}:
        raise WrongError(f"transformers finds {str(problems)[:500]}")
    largest = relative_difference(llm.logits(ids), theirs)
    if not largest < tolerance:
        raise WrongError(f"logits differ from transformers' by {largest:.1e} of the largest")
    return "logits equal transformers'"


@torch.no_grad()
def their_logits(model: Any, ids: list[int]) -> Tensor:
    """(T, V) of one text in one pass."""
    return model(torch.tensor([ids])).logits[0].float()


def relative_difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference by the largest value, of what is a number in both.

    Where a damaged weight is huge, it is the order of a sum that decides whether it overflows.
    """
    if ours.shape != theirs.shape:
        return float("inf")
    finite = ours.isfinite() & theirs.isfinite()
    if not finite.any():
        return 0.0
    return float((ours - theirs)[finite].abs().max() / theirs[finite].abs().max().clamp(min=1e-30))
