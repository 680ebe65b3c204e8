"""Damage a model, load it, generate, and judge what happened: one JSON line per mutation.

    python -m tests.fuzz.worker SEED NUMBER [COUNT] [--bases FOLDER | --only NAMES] [--keep FOLDER]

does mutation NUMBER of SEED again (and COUNT - 1 after it); --only takes a pattern of names, as the
run to repeat had it in MINILLM_FUZZ_BASES; --keep leaves the damaged folder there and shows the
traceback of a fault. It runs in a process of its own, so that a crash, an endless loop or a huge
allocation hurts nobody else.
"""

import argparse
import faulthandler
import fnmatch
import json
import random
import re
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import transformers

from minillm.llm import LLM
from minillm.sampling import SamplingParams
from tests.fuzz import folders, gguf_models, oracle, oracle_gguf, packed_models
from tests.fuzz.damage import mutate
from tests.fuzz.damage.config import CONFIG_KEYS, ROPE_KEYS
from tests.fuzz.oracle_engine import blocks_run, same_engine
from tests.fuzz.tables import WrongError

MOST_CPU_S = 2.0
MOST_MEMORY = 200 * 2**20  # bytes; a folder weighs 200 kB
HANG_CPU_S, HANG_WALL_S = 10.0, 120.0  # the process is given up, and another one goes on
MOST_CHARACTERS = 2_000  # of a message
PARAMS = SamplingParams(max_new_tokens=2, ignore_eos=True)
# A refusal names the file, or the key, tensor or part at fault.
NAMES = re.compile(
    r"config\.json|tokenizer\.json|tokenizer_config\.json|\.safetensors|chat_template\.jinja|"
    r"chat template|weights do not fit|the logits are|layers are described|RoPE factor|YaRN|"
    r"the tokenizer has \d+ ids|the prompt|added_tokens|model\.|pre_tokenizer|"
    r"post_processor|normalizer|decoder|no weights|token id|\.gguf|"
    r"\.qweight|\.qzeros|\.scales|\.g_idx|" + "|".join(CONFIG_KEYS + ROPE_KEYS)
)


def judge(model: Path) -> tuple[str, str, LLM | None]:
    """Load and generate: ("works" | "refused" | "fault", how, what works)."""
    stage = "load"
    try:
        llm = LLM.from_pretrained(model, device="cpu", dtype="float32")
        stage = "generate"
        outputs = [llm.generate("hello the 42", PARAMS)]
        if llm.chat_template is not None:
            stage = "chat"
            outputs.append(llm.chat([{"role": "user", "content": "hello"}], PARAMS))
        assert [len(output.token_ids) for output in outputs] == [2] * len(outputs)
        assert all(isinstance(output.text, str) for output in outputs)
    except (ValueError, OSError) as error:
        message = str(error)
        if len(message) > MOST_CHARACTERS + len(str(model)):
            return (
                "fault",
                f"{stage}: a message of {len(message)} characters: {message[:200]}",
                None,
            )
        if re.search("memory|allocat", message, re.IGNORECASE):
            return "fault", f"{stage}: ran into the memory limit: {message}", None
        if not NAMES.search(message.replace(str(model.parent), "")):
            return "fault", f"{stage}: names neither file nor key: {message!r}", None
        return "refused", f"{stage}: {message}", None
    except BaseException as error:
        traceback.print_exc()
        return "fault", f"{stage}: {type(error).__name__}: {str(error)[:300]}", None
    return "works", "", llm


def build(bases: Path, pattern: str = "*") -> None:
    """Write the models to damage whose names fit the pattern, each in a folder of its own."""
    transformers.utils.logging.disable_progress_bar()
    for module in (folders, gguf_models, packed_models):
        for name in fnmatch.filter(module.BASES, pattern):
            module.build(bases, name)


def model_of(folder: Path, base: str) -> Path:
    """What is loaded: the folder, or the GGUF file in it."""
    return folder / "model.gguf" if base in gguf_models.BASES else folder


def explain(llm: LLM, folder: Path, undamaged: LLM, base: Path) -> list[str]:
    """Why a damaged model that loads counts as valid; `WrongError` where it does not."""
    if base.name in gguf_models.BASES:
        reasons = oracle_gguf.explain(llm, folder / "model.gguf", base)
        reasons.append(blocks_run(folder / "model.gguf"))
    else:
        reasons = oracle.explain(llm, folder, undamaged, base)
    return [*reasons, same_engine(llm)]


def mutation(seed: str, number: int, bases: Path, folder: Path) -> tuple[str, list[str], str]:
    """Make mutation `number` of `seed` in `folder`; the same two make the same folder.

    Returns the name of the base, the kinds of damage, and what they did.
    """
    rng = random.Random(f"{seed}/{number}")
    base = rng.choice(sorted(path.name for path in bases.iterdir()))
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(bases / base, folder)
    return base, *mutate(folder, rng)


def measured(folder: Path, base: Path, undamaged: LLM) -> dict[str, Any]:
    """`judge`, with CPU time and memory: a refusal must be quick and small. Then the oracle."""
    _forget_peak()
    before, started = _peak_memory(), time.process_time()
    outcome, how, llm = judge(model_of(folder, base.name))
    seconds, grown = time.process_time() - started, _peak_memory() - before
    if outcome != "fault" and seconds > MOST_CPU_S:
        outcome, how = "fault", f"took {seconds:.1f} s of CPU time ({outcome}: {how})"
    if outcome != "fault" and grown > MOST_MEMORY:
        outcome, how = "fault", f"took {grown / 1e6:.0f} MB ({outcome}: {how})"
    if outcome == "works" and llm is not None:
        try:
            how = "; ".join(explain(llm, folder, undamaged, base))
        except WrongError as error:
            outcome, how = "fault", f"silently wrong: {error}"
        except Exception as error:
            traceback.print_exc()
            outcome, how = "fault", f"the oracle: {type(error).__name__}: {str(error)[:500]}"
    return {"outcome": outcome, "how": how, "cpu_s": seconds, "memory": grown}


def _peak_memory() -> int:
    """The most memory that this process has held, in bytes; 0 where the system does not say."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage begins with what the parent held
        held = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        return int(held[1]) * 1024 if held else 0
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _forget_peak() -> None:
    """Let the peak begin anew at what is held now, where the system can (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def limit_memory(more: int) -> None:
    """Make an allocation of `more` bytes fail, even one that would never be touched (Linux)."""
    status = Path("/proc/self/statm")
    if not status.exists():
        return
    import resource

    used = int(status.read_text().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY or used + more < most:
        resource.setrlimit(resource.RLIMIT_AS, (used + more, most))


@contextmanager
def ending_hangs() -> Iterator[None]:
    """End the process, with a traceback, when what is done here takes too long."""
    faulthandler.dump_traceback_later(HANG_WALL_S, exit=True)
    if hasattr(signal, "setitimer"):
        faulthandler.register(signal.SIGPROF, chain=True)
        signal.setitimer(signal.ITIMER_PROF, HANG_CPU_S)
    yield
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, 0)
    faulthandler.cancel_dump_traceback_later()


def main() -> None:
    """Run mutations NUMBER … NUMBER + COUNT - 1 and print what became of each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seed")
    parser.add_argument("number", type=int)
    parser.add_argument("count", type=int, nargs="?", default=1)
    parser.add_argument("--bases", type=Path)
    parser.add_argument("--only", default="*")
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity(100)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        bases = arguments.bases or Path(temporary) / "bases"
        if arguments.bases is None:
            build(bases, arguments.only)
        folder = arguments.keep or Path(temporary) / "model"
        undamaged = {}
        # What the first use of everything takes does not count.
        for base in sorted(bases.iterdir()):
            _, how, llm = judge(model_of(base, base.name))
            assert llm is not None, f"{base.name}: {how}"
            explain(llm, base, llm, base)
            undamaged[base.name] = llm
        limit_memory(2 * MOST_MEMORY)
        for number in range(arguments.number, arguments.number + arguments.count):
            base_name, kinds, what = mutation(arguments.seed, number, bases, folder)
            report = {"number": number, "kinds": kinds, "what": f"{base_name}: {what}"}
            print(json.dumps(report), flush=True)
            with ending_hangs():
                found = measured(folder, bases / base_name, undamaged[base_name])
            print(json.dumps(report | found), flush=True)


if __name__ == "__main__":
    main()
