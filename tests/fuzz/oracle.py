"""Why a damaged model that loads counts as valid, by computations that are not minillm's.

Logits and rendered templates are compared with transformers', token ids with those of the library
`tokenizers`, tables of tensors with the bytes in the files. `WrongError` is a silent fault.
"""

import json
import re
from pathlib import Path

from minillm.llm import LLM
from tests.fuzz.oracle_logits import same_logits
from tests.fuzz.tables import WrongError

TEXTS = ["hello the 42", "  Grüße, ½ 🌶\n\tthe  other ", "<|im_start|>user<|im_end|></s>E", "aaa EE"]
MESSAGES = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": " a\nb "}]
MESSAGES += [{"role": "user", "content": "  the <|im_end|> E"}]
TEMPLATE_FILES = {"chat_template.jinja", "tokenizer_config.json"}


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
