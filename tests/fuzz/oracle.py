"""Why a damaged model that loads counts as valid, by computations that are not minillm's.

Logits and rendered templates are compared with transformers', token ids with those of the library
`tokenizers`, tables of tensors with the bytes in the files. `WrongError` is a silent fault.
"""

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minillm.llm import LLM
from tests.fuzz.tables import WrongError, difference, folder_tensors

TEXTS = ["hello the 42", "  Grüße, ½ 🌶\n\tthe  other ", "<|im_start|>user<|im_end|></s>E", "aaa EE"]
MESSAGES = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": " a\nb "}]
MESSAGES += [{"role": "user", "content": "  the <|im_end|> E"}]
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
TEMPLATE_FILES = {"chat_template.jinja", "tokenizer_config.json"}


class RefusalError(WrongError):
    """transformers does not compute what minillm did."""


def explain(llm: LLM, folder: Path, undamaged: LLM, base: Path) -> list[str]:
    """Why what was loaded from the damaged `folder` is what its files say."""
    names = {path.name for path in (*folder.iterdir(), *base.iterdir())}
    changed = {name for name in names if not same_bytes(folder / name, base / name)}
    if folder == base:  # to see that the oracle agrees where nothing is damaged
        changed = names
    reasons = []
    if any("safetensors" in name or name == "config.json" for name in changed):
        reasons.append(same_logits(llm, folder, undamaged, base))
    if "tokenizer.json" in changed:
        reasons.append(same_ids(llm, folder / "tokenizer.json", undamaged))
    if changed & TEMPLATE_FILES:
        reasons.append(same_text(llm, *template_of(folder)))
    if changed & {"generation_config.json", "config.json"}:
        reasons.append(same_ends(llm, folder))
    return reasons or ["nothing reads what changed"]


def same_bytes(one: Path, other: Path) -> bool:
    """Whether two files hold the same."""
    return one.is_file() and other.is_file() and one.read_bytes() == other.read_bytes()


def same_logits(llm: LLM, folder: Path, undamaged: LLM, base: Path) -> str:
    """Compare with transformers, which reads the damaged config.json and weights itself."""
    tensors = difference(folder_tensors(base), folder_tensors(folder))
    with tempfile.TemporaryDirectory() as temporary:
        clean = Path(temporary)
        for path in folder.glob("*.safetensors"):
            if path.is_file():
                shutil.copyfile(path, clean / path.name)
        if (index := folder / "model.safetensors.index.json").exists():
            placed = {"weight_map": json.loads(index.read_bytes())["weight_map"], "metadata": {}}
            (clean / index.name).write_text(json.dumps(placed))
        settings = model_settings(folder, base)
        (clean / "config.json").write_text(json.dumps(settings))
        try:
            return f"{tensors}: {compare_logits(llm, clean, tolerance_for(tensors))}"
        except RefusalError as error:
            # What transformers cannot read must have counted for nothing.
            if llm.config != undamaged.config:
                raise WrongError(str(error)) from error
        shutil.copyfile(base / "config.json", clean / "config.json")
        return f"{tensors}, no other feature: {compare_logits(llm, clean, tolerance_for(tensors))}"


def tolerance_for(tensors: str) -> float:
    """How far logits may differ, by what became of the tensors."""
    return TOLERANCE if tensors == "the same tensors" else DAMAGED_TOLERANCE


def model_settings(folder: Path, base: Path) -> dict[str, Any]:
    """config.json without what is no feature of its family: other keys, and ids of tokens."""
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
    whole = json.loads((base / "config.json").read_bytes())
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


def same_ids(llm: LLM, path: Path, undamaged: LLM) -> str:
    """Compare token ids and decoded text with those of the `tokenizers` library."""
    from tokenizers import Tokenizer, decoders

    try:
        theirs = Tokenizer.from_file(str(path))
        theirs.no_padding()
        theirs.no_truncation()
        expected = [theirs.encode(text).ids for text in TEXTS]
        if theirs.decoder is None:  # the library would put a space after each token
            theirs.decoder = decoders.ByteLevel()
        decoded = [theirs.decode(ids, skip_special_tokens=False) for ids in expected]
        by = "equal those of tokenizers"
    except BaseException as error:  # a panic in Rust is no Exception
        refusal = f"tokenizers: {type(error).__name__}: {str(error)[:300]}"
        expected = [undamaged.tokenizer.encode(text, allowed_special="all") for text in TEXTS]
        decoded = [undamaged.tokenizer.decode(ids) for ids in expected]
        by = "equal those before the damage"
    else:
        refusal = ""
    found = [llm.tokenizer.encode(text, allowed_special="all") for text in TEXTS]
    if found != expected:
        raise WrongError(f"token ids {found} instead of {expected} {refusal}")
    texts = [llm.tokenizer.decode(ids) for ids in found]
    if texts != decoded:
        raise WrongError(f"decoded {texts} instead of {decoded} {refusal}")
    same_stream(llm, found)
    return f"token ids and decoded text {by}"


def same_stream(llm: LLM, texts: list[list[int]]) -> None:
    """What streams must be what is decoded at once."""
    for ids in texts:
        stream = llm.tokenizer.stream()
        streamed = "".join([*map(stream.push, ids), stream.flush()])
        if streamed != (whole := llm.tokenizer.decode(ids)):
            raise WrongError(f"streamed {streamed!r} instead of {whole!r}")


def same_ends(llm: LLM, folder: Path) -> str:
    """The tokens that end an answer: of generation_config.json, else of config.json."""
    ends = json.loads((folder / "config.json").read_bytes()).get("eos_token_id")
    path = folder / "generation_config.json"
    if path.is_file():
        ends = json.loads(path.read_bytes()).get("eos_token_id", ends)
    expected = set(ends if isinstance(ends, list) else [] if ends is None else [ends])
    if llm.eos_token_ids != expected:
        raise WrongError(f"{set(llm.eos_token_ids)} end an answer instead of {expected}")
    return "the same end tokens"


def template_of(folder: Path) -> tuple[str | None, dict[str, str]]:
    """The chat template of a folder and the special tokens that it may name."""
    path, jinja = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    tokens = {}
    for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = config.get(key)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            tokens[key] = token
    source = config.get("chat_template")
    if isinstance(source, list):
        named = [entry for entry in source if isinstance(entry, dict)]
        source = {str(entry.get("name")): entry.get("template") for entry in named}.get("default")
    return (jinja.read_text(encoding="utf-8") if jinja.is_file() else source), tokens


def same_text(llm: LLM, source: str | None, tokens: dict[str, str]) -> str:
    """Compare the rendered template with what transformers makes of it."""
    from transformers.utils.chat_template_utils import render_jinja_template

    if llm.chat_template is None:
        if source is not None:
            raise WrongError(f"there is no chat template, but in the file {source!r:.200}")
        return "there is no template"
    if source is None:
        raise WrongError("there is a chat template, but none in the file")
    try:
        ours = llm.chat_template.render(MESSAGES)
    except ValueError:
        return "the template objects to a longer conversation"
    try:
        theirs = render_jinja_template(
            [MESSAGES], chat_template=source, add_generation_prompt=True, **tokens
        )[0][0]
    except (MemoryError, OverflowError):  # it computes what stands in a branch not taken, too
        return "the template's text is too much for transformers"
    ours, theirs = (re.sub(" at 0x[0-9a-f]+", "", text) for text in (ours, theirs))
    if ours != theirs:
        raise WrongError(f"the template gives {ours!r:.300} instead of {theirs!r:.300}")
    return "the template's text equals transformers'"
