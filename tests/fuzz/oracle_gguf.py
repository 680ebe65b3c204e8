"""Why a damaged GGUF file that loads counts as valid, by computations that are not minillm's.

The file is taken apart again and written as a folder, from which transformers computes logits.
"""

import tempfile
from pathlib import Path

from minillm.llm import LLM
from tests.fuzz.gguf_back import to_folder
from tests.fuzz.gguf_format import Document, decode, stored
from tests.fuzz.gguf_models import BASES, source_of
from tests.fuzz.gguf_tokens import token_ids
from tests.fuzz.oracle import TEXTS, same_stream, same_text
from tests.fuzz.oracle_logits import compare_logits, tolerance_for
from tests.fuzz.tables import WrongError, difference


def explain(llm: LLM, path: Path, base: Path) -> list[str]:
    """Why what was loaded from the damaged file at `path` is what it says."""
    document, original = decode(path.read_bytes()), decode((base / path.name).read_bytes())
    tensors = difference(stored(original), stored(document))
    reasons = []
    with tempfile.TemporaryDirectory() as temporary:
        to_folder(document, BASES[base.name], original, source_of(base), Path(temporary))
        reasons.append(f"{tensors}: {compare_logits(llm, Path(temporary), tolerance_for(tensors))}")
    reasons.append(same_ids(llm, document))
    values = document.values()
    source = values.get("tokenizer.chat_template") or None  # an empty one is none
    tokens = {
        f"{key}_token": values["tokenizer.ggml.tokens"][values[f"tokenizer.ggml.{name}_token_id"]]
        for key, name in {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}.items()
        if f"tokenizer.ggml.{name}_token_id" in values
    }
    reasons.append(same_text(llm, source, tokens))
    end = values.get("tokenizer.ggml.eos_token_id")
    if end is not None and end not in llm.eos_token_ids:
        raise WrongError(f"{set(llm.eos_token_ids)} end an answer, without {end}")
    return reasons


def same_ids(llm: LLM, document: Document) -> str:
    """Compare token ids with what the lists of the file mean."""
    try:
        expected = [token_ids(document.values(), text) for text in TEXTS]
    except KeyError as error:
        raise WrongError(f"the file lacks {error}") from error
    found = [llm.tokenizer.encode(text, allowed_special="all") for text in TEXTS]
    if found != expected:
        raise WrongError(f"token ids {found} instead of {expected}")
    same_stream(llm, found)
    return "token ids equal those of the lists"
