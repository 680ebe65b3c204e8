"""A saved folder: transformers gives equal logits and ids; what is in the way is left alone."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Qwen2Config

from minillm.tokenizer import Tokenizer
from minillm.weights.safetensors import open_weights
from minillm.weights.save import save_folder

TEXT = "The quick brown fox jumps over the lazy dog. " * 3
TEMPLATE = "{% for m in messages %}{{ m['content'] + '<|end|>' }}{% endfor %}"
TOKENIZER_CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([TEXT], vocab_size=280, special_tokens=["<|end|>"])


def tiny(kind: type = LlamaConfig, dtype: torch.dtype = torch.float32, **settings):
    torch.manual_seed(0)
    sizes = {"vocab_size": 280, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = kind(**sizes, **heads, **settings)
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def save(folder, model, tokenizer, **more):
    weights = model.state_dict()
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    settings = model.config.to_dict()
    return save_folder(folder, settings=settings, weights=weights, tokenizer=tokenizer, **more)


def logits(model):
    with torch.inference_mode():
        return model(torch.arange(20)[None]).logits


@pytest.mark.parametrize(
    ("dtype", "tied", "shard_bytes"),
    [
        (torch.float32, True, 5_000_000_000),
        (torch.float32, False, 20_000),
        (torch.bfloat16, True, 1),
        (torch.bfloat16, False, 5_000_000_000),
        (torch.float16, True, 20_000),
    ],
)
def test_transformers_gives_equal_logits(tmp_path, tokenizer, dtype, tied, shard_bytes):
    model = tiny(dtype=dtype, tie_word_embeddings=tied)
    folder = save(tmp_path / "new" / "model", model, tokenizer, shard_bytes=shard_bytes)
    again = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    assert again.dtype == dtype
    assert torch.equal(logits(again), logits(model))
    weights = open_weights(folder)
    assert all(weights[name].dtype == dtype for name in weights)
    files = {path.name for path in folder.iterdir()}
    if shard_bytes > 1e9:
        assert files == {"config.json", "tokenizer.json", "model.safetensors"}
    elif shard_bytes == 1:
        assert sum(name.endswith(".safetensors") for name in files) == len(weights)
    else:
        sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
        assert len(sizes) > 1
        assert max(sizes) < 20_000 + 280 * 32 * 4
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model"]


def test_biases_and_a_spelling_of_transformers_4(tmp_path, tokenizer):
    model = tiny(Qwen2Config, torch.bfloat16)
    settings = {**model.config.to_dict(), "torch_dtype": "float32"}
    save_folder(tmp_path, settings=settings, weights=model.state_dict(), tokenizer=tokenizer)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    assert again.dtype == torch.bfloat16
    assert torch.equal(logits(again), logits(model))


def test_autotokenizer_gives_equal_ids(tmp_path, tokenizer):
    folder = save(
        tmp_path / "model",
        tiny(),
        tokenizer,
        generation={"eos_token_id": [256, 257]},
        tokenizer_config=TOKENIZER_CONFIG,
        chat_template=TEMPLATE,
    )
    theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    for text in (TEXT, " ½ été 你好 🙂\n\n  x", "a<|end|>b"):
        ids = theirs.encode(text, add_special_tokens=False)
        assert ids == tokenizer.encode(text, allowed_special="all")
        assert Tokenizer.from_file(folder / "tokenizer.json").encode(text) == tokenizer.encode(text)
    messages = [{"role": "user", "content": "Hello"}]
    assert theirs.apply_chat_template(messages, tokenize=False) == "Hello<|end|>"
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [256, 257]


def test_mixed_types_are_aligned_and_the_most_of_them_names_the_dtype(tmp_path, tokenizer):
    weights = {
        "a": torch.randn(3, dtype=torch.bfloat16),
        "b": torch.randn(1, dtype=torch.float64),
        "c": torch.randn(2, 1),
        "d": torch.randn(()),
        "e": torch.randn(0, 3),
        "f": torch.randn(2, 3).T,  # not contiguous
        "g": torch.randn(50_000, dtype=torch.bfloat16).expand(200, 50_000),  # two pieces
    }
    save_folder(tmp_path / "m", settings={}, weights=weights, tokenizer=tokenizer)
    found = open_weights(tmp_path / "m")
    assert found.keys() == weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(found[name], tensor)
        assert found[name].data_ptr() % found[name].element_size() == 0
    assert json.loads((tmp_path / "m" / "config.json").read_text()) == {"dtype": "bfloat16"}


def test_what_is_there_is_left_alone(tmp_path, tokenizer):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("full", "file"):
        with pytest.raises(FileExistsError, match=f"{name} is there already; a new or an empty"):
            save(tmp_path / name, tiny(), tokenizer)
    assert (tmp_path / "full" / "note.txt").read_text() == "mine"
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty", tiny(), tokenizer)
    assert {path.name for path in tmp_path.iterdir()} == {"full", "file", "empty"}


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float8_e4m3fn, torch.complex64])
def test_a_tensor_that_is_no_weight(tmp_path, tokenizer, dtype):
    weights = {"layer.weight": torch.zeros(2, dtype=dtype)}
    with pytest.raises(ValueError, match=r"layer\.weight is torch\.\w+; weights are saved in"):
        save_folder(tmp_path / "m", settings={}, weights=weights, tokenizer=tokenizer)
    assert list(tmp_path.iterdir()) == []


class Failing(Mapping[str, torch.Tensor]):
    """Weights of which the last one cannot be computed a second time."""

    asked = 0

    def __getitem__(self, name: str) -> torch.Tensor:
        self.asked += 1
        if self.asked == 4:
            raise KeyboardInterrupt
        return torch.zeros(3)

    def __iter__(self) -> Iterator[str]:
        return iter("ab")

    def __len__(self) -> int:
        return 2


def test_an_interrupted_save_leaves_nothing(tmp_path, tokenizer):
    with pytest.raises(KeyboardInterrupt):
        save_folder(tmp_path / "m", settings={}, weights=Failing(), tokenizer=tokenizer)
    assert list(tmp_path.iterdir()) == []


LIMITED = """
import resource, signal, sys, torch
from minillm.tokenizer import Tokenizer
from minillm.weights.save import save_folder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
tokenizer = Tokenizer.train(["abc"], vocab_size=258)
save_folder(sys.argv[1], settings={}, weights={"a": torch.zeros(10**6)}, tokenizer=tokenizer)
"""


@pytest.mark.skipif(os.name == "nt", reason="needs a limit on the size of files")
def test_a_disk_without_room_is_one_error(tmp_path):
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "m")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"{tmp_path / 'm'} cannot be saved: File too large" in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


MEASURE = """
import sys, torch
from collections import UserDict
from minillm.tokenizer import Tokenizer
from minillm.weights.save import save_folder
def peak():  # of this process's memory, in bytes
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
class Computed(UserDict):
    def __getitem__(self, name):
        return torch.full((2_000_000,), float(name))
tokenizer = Tokenizer.train(["abc"], vocab_size=258)
save_folder(sys.argv[1] + "/1", settings={}, weights=Computed({"0": 0}), tokenizer=tokenizer)
before = peak()
weights = Computed(dict.fromkeys(map(str, range(30))))
save_folder(sys.argv[1] + "/2", settings={}, weights=weights, tokenizer=tokenizer)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of a process's memory")
def test_memory_does_not_grow_with_the_model(tmp_path):
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    # glibc gives every tensor pages of its own then, so that what is measured are tensors, and not
    # what its heap keeps of those that are gone.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    assert int(done.stdout) < 30e6  # of 240 MB
    assert sum(path.stat().st_size for path in Path(tmp_path, "2").iterdir()) > 240e6
