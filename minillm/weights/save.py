"""Write a model as a Hugging Face folder, which transformers reads as well as minillm.

The folder is written under a hidden name beside its place and renamed as the last step, so it is
either whole or absent. Nothing that is in the way is replaced.
"""

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from minillm.model import Transformer
from minillm.tokenizer import ChatTemplate
from minillm.weights.checkpoint import Checkpoint
from minillm.weights.safetensors import INDEX_FILE, SINGLE_FILE

if TYPE_CHECKING:
    from minillm.weights.source import ModelSource

# As large as the hub's own tools make a file.
SHARD_BYTES = 5_000_000_000
# Bytes that are brought from the tensor's device and written at a time.
PIECE_BYTES = 2**24

# What the format calls the types that weights have.
FLOATS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64"}
DTYPES = FLOATS | {torch.int32: "I32"}  # words of packed codes

Json = Mapping[str, Any]


class Form(NamedTuple):
    """What a file's header says of a tensor."""

    dtype: torch.dtype
    shape: torch.Size

    @property
    def nbytes(self) -> int:
        """Size of the values, in bytes."""
        return self.shape.numel() * self.dtype.itemsize


class HasSave(Protocol):
    """A tokenizer, as far as it matters here."""

    def save(self, path: Path) -> None:
        """Write a tokenizer.json."""


def save_model(
    folder: str | Path,
    model: Transformer,
    source: "ModelSource",
    tokenizer: HasSave,
    chat_template: ChatTemplate | None,
) -> Path:
    """Write a model to `folder` with the settings of where it came from; see `save_folder`.

    Quantized layers are written as GPTQ files hold them. Raises ValueError, before anything is
    written, where that is not possible.
    """
    templates = chat_template.sources if chat_template else {}
    config = {
        key: value for key, value in source.tokenizer_config.items() if key != "chat_template"
    }
    if templates.keys() - {"default"}:  # a file holds one, the configuration any number
        named = [{"name": name, "template": text} for name, text in templates.items()]
        config["chat_template"] = named
    weights = Checkpoint(model, source.settings["model_type"])
    settings = {k: v for k, v in source.settings.items() if k != "quantization_config"}
    if weights.quantization_config:
        settings["quantization_config"] = weights.quantization_config
    return save_folder(
        folder,
        settings=settings,
        weights=weights,
        tokenizer=tokenizer,
        generation=source.generation or None,
        tokenizer_config=config,
        chat_template=None if "chat_template" in config else templates.get("default"),
    )


def save_folder(
    folder: str | Path,
    *,
    settings: Json,
    weights: Mapping[str, Tensor],
    tokenizer: HasSave,
    generation: Json | None = None,
    tokenizer_config: Json | None = None,
    chat_template: str | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Write a model to `folder`, which must be new or empty; the folders above it are made.

    settings, generation, tokenizer_config: contents of config.json, generation_config.json and
        tokenizer_config.json. config.json gets the dtype of the weights.
    weights: by their names in a Hugging Face checkpoint. Each is asked for twice, first for its
        form and then for its values, and let go once it is written: a mapping may compute them.
    chat_template: goes into chat_template.jinja.
    shard_bytes: the most that a file holds, unless a single tensor is larger.
    Returns: the folder.
    Raises: FileExistsError where something is there, which is left as it is; ValueError for a
        tensor that is no weight; OSError where the folder cannot be written. Nothing is left then.
    """
    folder = Path(folder).expanduser().absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} is there already; a new or an empty folder is needed")
    forms = {name: _form(name, tensor) for name, tensor in weights.items()}
    values = Counter[torch.dtype]()
    for name, form in forms.items():
        if form.dtype in FLOATS and not name.endswith(".scales"):  # packed weights have their own
            values[form.dtype] += form.shape.numel()
    dtype = str(values.most_common(1)[0][0] if values else torch.float32).removeprefix("torch.")
    settings = {key: value for key, value in settings.items() if key != "torch_dtype"}
    files = {
        "config.json": settings | {"dtype": dtype},
        "generation_config.json": generation,
        "tokenizer_config.json": tokenizer_config,
    }
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as hidden:
            new = Path(hidden) / folder.name
            new.mkdir()
            for file_name, content in files.items():
                if content is not None:
                    _write_json(new / file_name, content)
            if chat_template is not None:
                (new / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
            tokenizer.save(new / "tokenizer.json")
            _write_weights(new, forms, weights, shard_bytes)
            if folder.exists():  # not every system replaces an empty folder
                folder.rmdir()
            new.rename(folder)
    except OSError as error:
        raise OSError(error.errno, f"{folder} cannot be saved: {error.strerror}") from error
    return folder


def write_safetensors(
    path: Path, forms: Mapping[str, Form], pieces: Callable[[str], Iterable[Tensor]]
) -> None:
    """Write one safetensors file, of which only a piece is in memory at a time.

    pieces: gives the values of a tensor, in order and in its dtype, as any number of tensors.
    Source: the format, https://github.com/huggingface/safetensors#format
    """
    # Wide types first: so every tensor begins at a multiple of its element's size.
    names = sorted(forms, key=lambda name: -forms[name].dtype.itemsize)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        begin, end = end, end + forms[name].nbytes
        header[name] = {
            "dtype": DTYPES[forms[name].dtype],
            "shape": list(forms[name].shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)  # the data begins at a multiple of 64 bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            for piece in pieces(name):
                file.write(piece.contiguous().view(-1).view(torch.uint8).numpy().data)
                del piece  # or it would keep its tensor while the next one is computed
        file.flush()
        os.fsync(file.fileno())


def _form(name: str, tensor: Tensor) -> Form:
    if tensor.dtype not in DTYPES:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"{name} is {tensor.dtype}; weights are saved in {allowed}")
    return Form(tensor.dtype, tensor.shape)


def _write_weights(
    folder: Path, forms: Mapping[str, Form], weights: Mapping[str, Tensor], shard_bytes: int
) -> None:
    """One file, or shards with an index."""
    shards: list[dict[str, Form]] = [{}]
    room = shard_bytes
    for name, form in forms.items():
        if form.nbytes > room and shards[-1]:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = form
        room -= form.nbytes
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file_name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        if len(shards) == 1:
            file_name = SINGLE_FILE
        write_safetensors(folder / file_name, shard, lambda name: _pieces(weights[name]))
        weight_map |= dict.fromkeys(shard, file_name)
    if len(shards) > 1:
        total = sum(form.nbytes for form in forms.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        _write_json(folder / INDEX_FILE, index)


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    for piece in torch.split(tensor.detach().reshape(-1), PIECE_BYTES // tensor.element_size()):
        yield piece.cpu()


def _write_json(path: Path, content: Json) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
