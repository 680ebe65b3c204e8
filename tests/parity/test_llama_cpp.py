"""Greedy tokens beside llama.cpp's, where a Python has it: LLAMA_PYTHON, or this one."""

import os
import subprocess
import sys

import pytest

from tests.parity.greedy import greedy, partings, prompt_ids
from tools.llama_cpp_parity import LARGEST_GAP, described, gguf_file, llama_cpp_greedy


@pytest.fixture(scope="module")
def llama_python():
    python = os.environ.get("LLAMA_PYTHON", sys.executable)
    found = subprocess.run([python, "-c", "import llama_cpp"], capture_output=True)
    if found.returncode:
        pytest.skip(f"{python} has no llama-cpp-python (LLAMA_PYTHON names another Python)")
    return python


@pytest.mark.slow
def test_the_same_tokens_but_for_near_ties(llm, smollm2, llama_python, record_property):
    """llama.cpp rounds activations to 8 bits, so close logits may change places."""
    prompts = prompt_ids(llm)
    theirs = llama_cpp_greedy(llama_python, gguf_file(smollm2), prompts)
    found = partings(llm, prompts, greedy(llm, prompts), theirs)
    for parting in found:
        record_property("figure", "beside llama.cpp, " + described(llm, parting))
        assert parting.gap < LARGEST_GAP
    assert len(found) < len(prompts)


def test_a_python_without_llama_cpp_is_named(tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no llama_cpp here >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(RuntimeError, match="no llama_cpp here"):
        llama_cpp_greedy(str(broken), tmp_path / "model.gguf", [[1]])


def test_a_folder_without_a_gguf_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no \.gguf file"):
        gguf_file(tmp_path)
