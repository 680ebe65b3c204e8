"""Token ids that the lists of a GGUF file mean, found without minillm."""

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

from tests.fuzz.tables import WrongError

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4


def token_ids(values: dict[str, Any], text: str) -> list[int]:
    """Ids of a text in which the spelling of a control token is that token."""
    values = {key.removeprefix("tokenizer.ggml."): values[key] for key in values}
    values.setdefault("token_type", [1] * len(values["tokens"]))
    kind = str(values.get("model"))
    if kind == "llama":  # what llama.cpp takes where nothing is said
        values = {"bos_token_id": 1, "eos_token_id": 2} | values
    found = {"gpt2": _byte_level, "llama": _sentencepiece}[kind](values, text)
    before = [values["bos_token_id"]] if values.get("add_bos_token", kind == "llama") else []
    return before + found + ([values["eos_token_id"]] if values.get("add_eos_token") else [])


def _byte_level(values: dict[str, Any], text: str) -> list[int]:
    tokens, types = values["tokens"], values["token_type"]
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in values["merges"]]
    if len(vocab) < len(tokens) or len(types) != len(tokens):
        raise WrongError("a token stands twice, or has no type")
    try:
        tokenizer = Tokenizer(models.BPE(vocab, merges))
    except Exception as error:
        raise WrongError(f"tokenizers: {error}") from error
    digits = pre_tokenizers.Digits(individual_digits=True)
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    cut = pre_tokenizers.Split(Regex(QWEN2), "isolated")
    bare = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    steps: dict[str, list[Any]] = {
        "smollm": [digits, level],
        "qwen2": [cut, bare],
        "gpt-2": [level],
    }
    if values.get("pre") not in steps:
        raise WrongError(f"the pre-tokenizer is {values.get('pre')!r}")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps[values["pre"]])
    for token, kind in zip(tokens, types, strict=True):
        if kind in (CONTROL, USER_DEFINED):
            tokenizer.add_tokens([AddedToken(token, special=kind == CONTROL, normalized=False)])
    return tokenizer.encode(text).ids


def _sentencepiece(values: dict[str, Any], text: str) -> list[int]:
    """By the scores: the pair with the best one is merged, of equal ones the leftmost."""
    tokens, scores, types = values["tokens"], values["scores"], values["token_type"]
    if not len(set(tokens)) == len(tokens) == len(scores) == len(types):
        raise WrongError("a token stands twice, or has no score or type")
    vocab = {token: index for index, token in enumerate(tokens)}
    kinds = (UNKNOWN, CONTROL, USER_DEFINED)
    whole = [token for token in tokens if types[vocab[token]] in kinds]
    found: list[int] = []
    for part in _cut(text, sorted(whole, key=len, reverse=True)):
        if part in whole:
            found.append(vocab[part])
            continue
        space = " " if values.get("add_space_prefix", True) else ""
        symbols = list((space + part).replace(" ", "▁"))
        while True:
            pairs = [
                (-scores[vocab[symbols[i] + symbols[i + 1]]], i)
                for i in range(len(symbols) - 1)
                if symbols[i] + symbols[i + 1] in vocab
            ]
            if not pairs:
                break
            _, i = min(pairs)
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
        for symbol in symbols:
            if symbol in vocab:
                found.append(vocab[symbol])
            else:
                found += [vocab[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return found


def _cut(text: str, whole: list[str]) -> list[str]:
    """The text, with each of these tokens in it as a part of its own."""
    places = [(text.find(token), -len(token), token) for token in whole if token and token in text]
    if not places:
        return [text] if text else []
    start, _, token = min(places)
    return [*([text[:start]] if start else []), token, *_cut(text[start + len(token) :], whole)]
