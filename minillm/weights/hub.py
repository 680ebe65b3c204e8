"""A model from a repository on the Hugging Face hub."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minillm.weights.progress import copy_and_hash, progress

# Small files of a repository that are taken where they exist; the first two must.
REQUIRED = ("config.json", "tokenizer.json")
OPTIONAL = (
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def fetch_repository(repository: str, part: Path, *, quiet: bool = False) -> dict[str, Any]:
    """Download the safetensors model `repository` (owner/name) from the Hugging Face hub.

    The small files come first, and a model that minillm could not run is refused before its
    weights are downloaded. Sizes, and hashes where the hub states them, are verified.
    Returns: what origin.json says of the source.
    """
    from minillm.config import read_json
    from minillm.families import read_config

    with _hub_errors(repository):
        from huggingface_hub import HfApi

        info = HfApi(library_name="minillm").model_info(repository, files_metadata=True)
    files = {file.rfilename: file for file in info.siblings or []}
    if WEIGHTS not in files and INDEX not in files:
        raise ValueError(f"{repository}: no {WEIGHTS} and no {INDEX}; minillm reads nothing else")
    if lacking := [name for name in REQUIRED if name not in files]:
        raise ValueError(f"{repository}: no {' and no '.join(lacking)}, which minillm needs")
    small = [name for name in (*REQUIRED, *OPTIONAL, INDEX) if name in files]
    revision = str(info.sha)
    _download(repository, revision, small, part, quiet)
    try:
        read_config(read_json(part / "config.json"))
    except ValueError as error:
        raise ValueError(f"{repository}: {error}") from error
    # From here on torch is needed, which takes a second to import.
    from minillm.weights.safetensors import open_weights, read_weight_map

    large = sorted({*read_weight_map(part / INDEX).values()}) if INDEX in files else [WEIGHTS]
    if lacking := [name for name in large if name not in files]:
        raise ValueError(f"{repository}: its index names {', '.join(lacking)}, which it lacks")
    _download(repository, revision, large, part, quiet)
    for name in small + large:
        _verify(part / name, files[name], quiet)
    for path in part.iterdir():  # the library's notes, and files of another revision
        if path.name not in small + large:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    open_weights(part)
    card = getattr(info, "card_data", None)
    licence = getattr(card, "license", None) or "see the repository"
    return {"source": repository, "revision": revision, "licence": licence}


def _download(repository: str, revision: str, names: list[str], part: Path, quiet: bool) -> None:
    with _hub_errors(repository):
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils.tqdm import (
            are_progress_bars_disabled,
            disable_progress_bars,
            enable_progress_bars,
        )

        silence = quiet and not are_progress_bars_disabled()
        if silence:
            disable_progress_bars()
        try:
            snapshot_download(repository, revision=revision, allow_patterns=names, local_dir=part)
        finally:
            if silence:
                enable_progress_bars()


def _verify(path: Path, file: Any, quiet: bool) -> None:
    """Compare a downloaded file with what the hub said of it (None: it did not say)."""
    # The library returns without an error where the connection broke and part of it was there.
    if not path.is_file():
        raise ConnectionError(f"{path.name} could not be downloaded; run the same pull again")
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        path.unlink()
        raise ValueError(f"{path.name} has {size:,} bytes, the hub says {file.size:,}")
    if file.lfs is None:
        return
    with path.open("rb") as source, progress(f"verify {path.name}", size, quiet) as bar:
        found = copy_and_hash(source, None, bar)
    if found != file.lfs.sha256:
        path.unlink()
        raise ValueError(f"{path.name} has the SHA-256 {found}, the hub says {file.lfs.sha256}")


@contextmanager
def _hub_errors(repository: str) -> Iterator[None]:
    """Turn what huggingface_hub and the HTTP library under it raise into one clear line."""
    try:
        yield
    except Exception as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        reason = next((line for line in str(error).splitlines() if line.strip()), kinds)
        if "GatedRepoError" in kinds:
            raise PermissionError(
                f"{repository} is gated: accept its terms on the Hugging Face hub, then log in "
                "with `hf auth login`"
            ) from error
        if "RepositoryNotFoundError" in kinds:
            raise FileNotFoundError(
                f"{repository} is not on the Hugging Face hub (or is private: `hf auth login`)"
            ) from error
        if "OfflineModeIsEnabled" in kinds:
            raise ConnectionError(
                f"{repository} is not on this machine, and HF_HUB_OFFLINE forbids to fetch it"
            ) from error
        raise ConnectionError(
            f"{repository} could not be fetched from the Hugging Face hub ({reason})"
        ) from error
