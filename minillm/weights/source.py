"""Where a model comes from: a Hugging Face folder or a GGUF file, read part by part."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minillm.config import read_json
from minillm.families import TEXT_PARTS, text_part, text_tensors
from minillm.hf_quantization import read_packing
from minillm.tokenizer import AnyTokenizer, ChatTemplate, make_tokenizer, open_tokenizer

# A folder's settings and tokenizer are read without torch, which takes seconds to load.
if TYPE_CHECKING:
    from torch import Tensor

    from minillm.weights.gguf import GGUFModel
    from minillm.weights.gguf_tensor import GGUFTensor
    from minillm.weights.load import StoredTensor


class ModelSource(ABC):
    """The parts of a model, each read when it is first asked for.

    path: the folder or file. Every part raises ValueError, naming the file, where it is damaged or
    not supported, and FileNotFoundError where it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Contents of config.json."""

    @property
    @abstractmethod
    def generation(self) -> dict[str, Any]:
        """Contents of generation_config.json, which may be empty."""

    @property
    @abstractmethod
    def tokenizer_config(self) -> dict[str, Any]:
        """Contents of tokenizer_config.json, which may be empty."""

    @property
    @abstractmethod
    def tokenizer(self) -> AnyTokenizer:
        """Text to ids and back."""

    @property
    @abstractmethod
    def chat_template(self) -> ChatTemplate | None:
        """Conversations to text, where the model has a template."""

    @property
    @abstractmethod
    def weights(self) -> "Mapping[str, StoredTensor | Tensor]":
        """The tensors, by their names in a Hugging Face checkpoint."""

    @property
    @abstractmethod
    def gguf(self) -> Path | None:
        """The GGUF file that holds the same weights, in fewer bits; None where there is none."""

    @cached_property
    def block_weights(self) -> "Mapping[str, GGUFTensor]":
        """The tensors out of the GGUF file. ValueError where there is none."""
        if self.gguf is None:
            raise ValueError(
                "quantize is 'gguf', which needs a .gguf file, or a folder with exactly one in it"
            )
        from minillm.weights.gguf import open_tensors

        return open_tensors(self.gguf, self.settings)


class FolderSource(ModelSource):
    """A folder as transformers writes it."""

    @cached_property
    def _config(self) -> dict[str, Any]:
        return read_json(self.path / "config.json")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """config.json; of a model that sees images too, what it says of the text part."""
        return text_part(self._config)

    @cached_property
    def generation(self) -> dict[str, Any]:
        """generation_config.json, if there is one."""
        return self._optional("generation_config.json")

    @cached_property
    def tokenizer_config(self) -> dict[str, Any]:
        """tokenizer_config.json, if there is one."""
        return self._optional("tokenizer_config.json")

    @cached_property
    def tokenizer(self) -> AnyTokenizer:
        """tokenizer.json."""
        return open_tokenizer(self.path / "tokenizer.json")

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """chat_template.jinja, or that of tokenizer_config.json."""
        return ChatTemplate.from_folder(self.path)

    @property
    def weights(self) -> "Mapping[str, StoredTensor | Tensor]":
        """The safetensors files, mapped anew: what holds a map keeps the pages that were read."""
        from minillm.weights.packed import packed_weights
        from minillm.weights.safetensors import open_tensors

        tensors = packed_weights(open_tensors(self.path), read_packing(self.settings))
        seeing = str(self._config.get("model_type")) in TEXT_PARTS
        return text_tensors(tensors) if seeing else tensors

    @cached_property
    def gguf(self) -> Path | None:
        """The one .gguf file beside the safetensors, if it is the only one."""
        found = list(self.path.glob("*.gguf"))
        return found[0] if len(found) == 1 else None

    def _optional(self, name: str) -> dict[str, Any]:
        with suppress(FileNotFoundError):
            return read_json(self.path / name)
        return {}


class GGUFSource(ModelSource):
    """A GGUF file, translated to what a folder would hold."""

    @cached_property
    def _model(self) -> "GGUFModel":
        from minillm.weights.gguf import open_gguf

        return open_gguf(self.path)

    @property
    def settings(self) -> dict[str, Any]:
        """From the metadata of the architecture."""
        return self._model.settings

    @property
    def generation(self) -> dict[str, Any]:
        """From the ids of the special tokens."""
        return self._model.generation

    @property
    def tokenizer_config(self) -> dict[str, Any]:
        """From the metadata of the tokenizer."""
        return self._model.tokenizer_config

    @cached_property
    def tokenizer(self) -> AnyTokenizer:
        """From tokens, merges and scores."""
        return make_tokenizer(self._model.tokenizer)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """tokenizer.chat_template."""
        return ChatTemplate.from_config(self.tokenizer_config)

    @property
    def weights(self) -> "Mapping[str, StoredTensor | Tensor]":
        """The tensors, dequantized when they are placed. Handed out, not kept, as in a folder."""
        from minillm.weights.gguf import open_gguf

        tensors = self._model.tensors or open_gguf(self.path).tensors
        self._model = replace(self._model, tensors={})
        return tensors

    @property
    def gguf(self) -> Path | None:
        """The file itself."""
        return self.path


def open_source(path: Path) -> ModelSource:
    """The parts of the model in this folder or .gguf file."""
    return GGUFSource(path) if path.is_file() else FolderSource(path)
