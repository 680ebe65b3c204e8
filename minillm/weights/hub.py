"""A model from a repository on the Hugging Face hub."""

import errno
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from minillm.weights.hub_names import choose_gguf, gguf_names
from minillm.weights.progress import copy_and_hash, progress

# Small files of a repository that are taken where they exist; the first two must.
REQUIRED = ("config.json", "tokenizer.json")
OPTIONAL = (
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "special_tokens_map.json",
)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt")


class Listing(NamedTuple):
    """A repository at its newest revision; `files` says of each name what the hub knows."""

    repository: str
    revision: str
    licence: str
    files: dict[str, Any]

    def origin(self) -> dict[str, Any]:
        """What origin.json says of the source."""
        return {"source": self.repository, "revision": self.revision, "licence": self.licence}


def fetch_repository(
    repository: str, part: Path, *, rescue: Path, quiet: bool = False
) -> dict[str, Any]:
    """Download the safetensors model `repository` (owner/name) from the Hugging Face hub.

    The small files come first, and a model that minillm could not run is refused before its
    weights are downloaded. Sizes and hashes are verified.

    Args: `rescue`, an earlier folder of the model, whose weights are used where they are intact.
    Returns: what origin.json says of the source.
    """
    from minillm.config import read_json
    from minillm.hf_config import read_config

    listing = _list_files(repository)
    _check_needed(listing)
    small = [name for name in (*REQUIRED, *OPTIONAL, INDEX) if name in listing.files]
    _download(listing, small, part, quiet)
    try:
        read_config(read_json(part / "config.json"))
    except ValueError as error:
        raise ValueError(f"{repository}: {error}") from error
    # From here on torch is needed, which takes a second to import.
    from minillm.weights.safetensors import open_tensors, read_weight_map

    large = [WEIGHTS]
    if INDEX in small:
        large = sorted({*read_weight_map(part / INDEX).values()})
    if lacking := [name for name in large if name not in listing.files]:
        raise ValueError(f"{repository}: its index names {', '.join(lacking)}, which it lacks")
    _rescue(large, rescue, part)
    _download(listing, large, part, quiet)
    _keep_only([*small, *large], part)
    open_tensors(part)
    return listing.origin()


def fetch_gguf(
    repository: str, file_name: str, part: Path, *, rescue: Path, quiet: bool = False
) -> dict[str, Any]:
    """Download one GGUF file of a repository, which may stand in one of its folders, and verify it.

    Args and result: as of `fetch_repository`; `file_name` is one that `find_gguf` gave.
    """
    listing = _list_files(repository)
    path = next((name for name in listing.files if PurePosixPath(name).name == file_name), None)
    if path is None:
        raise FileNotFoundError(f"{repository}: {file_name} is not there any more")
    _rescue([file_name], rescue, part)
    if path != file_name and (part / file_name).exists():
        (part / path).parent.mkdir(parents=True, exist_ok=True)
        (part / file_name).replace(part / path)
    _download(listing, [path], part, quiet)
    (part / path).replace(part / file_name)
    _keep_only([file_name], part)
    return listing.origin()


def find_gguf(repository: str, tag: str) -> str:
    """Name of the GGUF file that `tag` means in a repository on the hub, see `choose_gguf`."""
    names = gguf_names(_list_files(repository).files)
    chosen = choose_gguf(repository, names, tag)
    if chosen is None:
        there = f"its GGUF files are {_some(names)}" if names else "it has no whole GGUF file"
        raise FileNotFoundError(f"{repository}: no {tag!r}; {there}")
    return chosen


def _list_files(repository: str) -> Listing:
    with _hub_errors(repository):
        from huggingface_hub import HfApi

        info = HfApi(library_name="minillm").model_info(repository, files_metadata=True)
    card = getattr(info, "card_data", None)
    licence = getattr(card, "license", None) or "see the repository"
    files = {file.rfilename: file for file in info.siblings or []}
    return Listing(repository, str(info.sha), licence, files)


def _check_needed(listing: Listing) -> None:
    """Refuse a repository without safetensors or tokenizer.json; say what is there instead."""
    repository, files = listing.repository, listing.files
    if WEIGHTS not in files and INDEX not in files:
        if names := gguf_names(files):
            raise ValueError(
                f"{repository} holds GGUF files: {_some(names)}; choose one with "
                f"`minillm pull {repository}:{names[0]}`, or by the end of its name"
            )
        if names := [name for name in files if name.endswith(PICKLED) and "/" not in name]:
            raise ValueError(
                f"{repository}: only pickled weights ({_some(names)}). Unpickling can run any "
                "code, so minillm never does it; convert a model that you trust with transformers: "
                f"AutoModelForCausalLM.from_pretrained({repository!r}).save_pretrained(folder), "
                "and the same with AutoTokenizer, then use the folder"
            )
        raise ValueError(f"{repository}: no {WEIGHTS} and no {INDEX}; minillm reads nothing else")
    if lacking := [name for name in REQUIRED if name not in files]:
        hint = ""
        if "tokenizer.model" in files and "tokenizer.json" in lacking:
            hint = (
                f". Its tokenizer.model can be converted with transformers: AutoTokenizer."
                f"from_pretrained({repository!r}).save_pretrained(folder)"
            )
        raise ValueError(f"{repository}: no {' and no '.join(lacking)}, which minillm needs{hint}")


def _rescue(names: list[str], folder: Path, part: Path) -> None:
    """Move files of an earlier folder to where the hub library compares them by their hash."""
    for name in names:
        if (folder / name).is_file() and not (part / name).exists():
            (folder / name).replace(part / name)


def _download(listing: Listing, names: list[str], part: Path, quiet: bool) -> None:
    """Bring files into `part`, unless they are there and whole; each is verified."""
    wanted = sum(listing.files[name].size or 0 for name in names if not (part / name).exists())
    free = shutil.disk_usage(part).free
    if wanted > free + sum(path.stat().st_size for path in part.rglob("*.incomplete")):
        raise OSError(
            errno.ENOSPC,
            f"{listing.repository} needs {wanted:,} bytes; {free:,} are free in {part.parent}",
        )
    with _hub_errors(listing.repository):
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
            snapshot_download(
                listing.repository,
                revision=listing.revision,
                allow_patterns=names,
                local_dir=part,
            )
        finally:
            if silence:
                enable_progress_bars()
    for name in names:
        _verify(part / name, listing.files[name], quiet)


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
        # git's own hash of a small file.
        kind, said = "Git hash", file.blob_id
        found = hashlib.sha1(b"blob %d\0" % size + path.read_bytes()).hexdigest()
    else:
        kind, said = "SHA-256", file.lfs.sha256
        with path.open("rb") as source, progress(f"verify {path.name}", size, quiet) as bar:
            found = copy_and_hash(source, None, bar)
    if said is not None and found != said:
        path.unlink()
        raise ValueError(f"{path.name} has the {kind} {found}, the hub says {said}")


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
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(error.errno, f"{repository}: {error.strerror}") from error
        raise ConnectionError(
            f"{repository} could not be fetched from the Hugging Face hub ({reason})"
        ) from error


def _keep_only(names: list[str], part: Path) -> None:
    """Remove the hub library's notes, and files of another revision."""
    for path in part.iterdir():
        if path.name not in names:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _some(names: list[str], most: int = 20) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(sorted(names)[:most]) + more
