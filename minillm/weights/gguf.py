"""A model from a GGUF file (llama.cpp's format), in Hugging Face's terms.

GGUF holds everything in one file: metadata (sizes, vocabulary, merges, chat template), then the
tensors, often as blocks of 4 or 8 bits. Here it is opened as what a Hugging Face folder holds:
config.json, tokenizer.json and tensors by name. `convert` writes that folder.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from minillm.weights.gguf_config import hf_config, hf_tensors
from minillm.weights.gguf_file import read_gguf
from minillm.weights.gguf_tensor import GGUFTensor
from minillm.weights.gguf_tokenizer import tokenizer_files
from minillm.weights.save import Form, write_safetensors


@dataclass(frozen=True, slots=True)
class GGUFModel:
    """A GGUF file as the contents of a Hugging Face folder.

    settings: config.json. generation: generation_config.json, with the tokens at which a text ends.
    tokenizer, tokenizer_config: tokenizer.json, tokenizer_config.json (the chat template in it).
    tensors: the weights by Hugging Face's names; their values are worked out by `GGUFTensor.to`.
    """

    settings: dict[str, Any]
    generation: dict[str, Any]
    tokenizer: dict[str, Any]
    tokenizer_config: dict[str, Any]
    tensors: dict[str, GGUFTensor]


def open_gguf(path: str | Path) -> GGUFModel:
    """Read the header of a GGUF file; its tensors are mapped, and read when they are used.

    Raises: ValueError, naming the file and the fault, for a file that is broken, of an architecture
        that is not known, or with a feature that config.json could not express.
    Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    """
    file = read_gguf(Path(path))
    try:
        settings = hf_config(file.metadata, file.tensors)
        tensors = hf_tensors(file.metadata, settings, file.tensors)
        files = tokenizer_files(file.metadata, settings["vocab_size"])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return GGUFModel(
        settings=settings,
        generation={key: settings[key] for key in settings if key.endswith("_token_id")},
        tokenizer=files["tokenizer.json"],
        tokenizer_config=files["tokenizer_config.json"],
        tensors=tensors,
    )


def open_tensors(path: str | Path, settings: dict[str, Any]) -> dict[str, GGUFTensor]:
    """The tensors alone, for a model whose config.json says `settings`.

    Raises: ValueError, naming the file, where they are not those of such a model.
    """
    file = read_gguf(Path(path), vocabulary=False)
    try:
        return hf_tensors(file.metadata, settings, file.tensors)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def convert(
    gguf_file: Path, folder: Path, *, progress: Callable[[int, int], object] = lambda *_: None
) -> None:
    """Write `gguf_file` as a Hugging Face folder (config, tokenizer, float32 safetensors).

    float32 holds the value of every block format exactly.

    Args: `folder`, which must exist. `progress` is called now and then with the number of
        weight bytes just written, and of all that there are to write.
    Raises: as `open_gguf`.
    """
    model = open_gguf(gguf_file)
    for name, content in {
        "config.json": model.settings,
        "generation_config.json": model.generation,
        "tokenizer.json": model.tokenizer,
        "tokenizer_config.json": model.tokenizer_config,
    }.items():
        with (folder / name).open("w", encoding="utf-8") as file:
            # Nobody reads 100,000 lines of merges; the other files are meant to be looked at.
            indent = None if name == "tokenizer.json" else 2
            json.dump(content, file, ensure_ascii=False, indent=indent)
    forms = {name: Form(torch.float32, torch.Size(t.shape)) for name, t in model.tensors.items()}
    total = sum(form.nbytes for form in forms.values())

    def pieces(name: str) -> Iterator[torch.Tensor]:
        for values in model.tensors[name].chunks():
            yield (piece := values.to(torch.float32))
            progress(piece.nbytes, total)

    write_safetensors(folder / "model.safetensors", forms, pieces)
