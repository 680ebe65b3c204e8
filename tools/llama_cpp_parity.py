"""Compare greedy tokens with llama.cpp's on the same GGUF file.

    python tools/llama_cpp_parity.py --llama-python ~/llama/bin/python [FILE.gguf]

The other Python needs llama-cpp-python and runs tools/llama_cpp_greedy.py. llama.cpp rounds
activations to 8 bits before it multiplies them with quantized weights, so the two may part where
the top logits are close. Every such place is listed with the gap there, minillm's top logit minus
that of llama.cpp's token, in float32; the exit code is 1 where one is 0.5 or more.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that `tests` can be imported

from minillm import LLM
from minillm.weights.pull import resolve
from tests.parity.greedy import NEW_TOKENS, Parting, greedy, partings, prompt_ids

LARGEST_GAP = 0.5
SCRIPT = Path(__file__).with_name("llama_cpp_greedy.py")


def main() -> int:
    """Run both, print where they part, and say whether every gap is small."""
    parser = argparse.ArgumentParser(description="Greedy tokens beside llama.cpp's.")
    parser.add_argument("--llama-python", required=True, help="a Python that has llama-cpp-python")
    parser.add_argument("file", nargs="?", type=Path, help="a .gguf file; default: SmolLM2's")
    arguments = parser.parse_args()
    file = arguments.file or gguf_file(resolve("smollm2"))
    llm = LLM.from_pretrained(file, device="cpu", dtype="float32")
    prompts = prompt_ids(llm)
    theirs = llama_cpp_greedy(arguments.llama_python, file, prompts)
    found = partings(llm, prompts, greedy(llm, prompts), theirs)
    print(f"{file.name}: {len(prompts)} prompts, {NEW_TOKENS} greedy tokens each")
    print(f"the same to the end: {len(prompts) - len(found)}")
    for parting in found:
        print(described(llm, parting))
    largest = max((parting.gap for parting in found), default=0.0)
    print(f"largest gap: {largest:.3f}; allowed: under {LARGEST_GAP}")
    return 1 if largest >= LARGEST_GAP else 0


def gguf_file(folder: Path) -> Path:
    """The GGUF file that a folder was converted from, which `minillm pull` leaves there."""
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise FileNotFoundError(f"{folder} has no .gguf file")
    return files[0]


def llama_cpp_greedy(python: str, file: Path, prompts: list[list[int]]) -> list[list[int]]:
    """llama.cpp's new tokens for each prompt, from another Python."""
    asked = {"model": str(file), "prompts": prompts, "new_tokens": NEW_TOKENS}
    done = subprocess.run(
        [python, str(SCRIPT)], input=json.dumps(asked), capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{python} {SCRIPT.name} failed:\n{done.stderr[-2000:]}")
    answers: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def described(llm: LLM, parting: Parting) -> str:
    """One line about a place where the texts part."""
    ours, theirs = (llm.tokenizer.decode([token]) for token in (parting.ours, parting.theirs))
    return (
        f"prompt {parting.prompt:>2}: after {parting.place:>2} tokens minillm {ours!r}, "
        f"llama.cpp {theirs!r}; gap {parting.gap:.3f}"
    )


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    sys.exit(main())
