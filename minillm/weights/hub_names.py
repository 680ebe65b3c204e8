"""Which GGUF file of a repository is meant: owner/name:Q4_K_M, as other programs spell it."""

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

# A part of a model that was split into several files.
SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def choose_gguf(repository: str, names: Iterable[str], tag: str) -> str | None:
    """The file that a tag means: its name, or the end of one, as in model-Q4_K_M.gguf for q4_k_m.

    Returns None where there is none; raises ValueError where there are several.
    """
    names = sorted(names)
    if tag in names:
        return tag
    meant = re.compile(rf"(?:.*[-._])?{re.escape(tag)}\.gguf", re.IGNORECASE)
    found = [name for name in names if meant.fullmatch(name)]
    if len(found) > 1:
        raise ValueError(f"{repository}:{tag} may be {' or '.join(found)}; give the whole name")
    return found[0] if found else None


def gguf_names(files: Iterable[str]) -> list[str]:
    """Names of whole GGUF files, without their folders; \\ and : mean something elsewhere."""
    names = {PurePosixPath(name).name for name in files if name.lower().endswith(".gguf")}
    return sorted(name for name in names if not SPLIT.search(name) and not {"\\", ":"} & {*name})
