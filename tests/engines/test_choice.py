"""Which engine runs a model, what it leaves to the modules, and what is said when there is none."""

import dataclasses
import shutil
import warnings
from contextlib import contextmanager

import pytest
import torch

from minillm import LLM, SamplingParams
from minillm import engines as engines_module
from minillm.cli import main
from minillm.engines import accelerate, decode, fastest_form
from minillm.engines.base import Accelerated, Engine, Unsupported
from minillm.engines.cpu import CpuEngine
from minillm.generate import prefill
from minillm.kernels import cpu
from minillm.kernels.cpu import products
from minillm.layers.attention import attention
from minillm.quantization.blocks import BlockLinear
from minillm.weights.pull import resolve
from minillm.weights.source import open_source
from tests.parity.models import saved
from tests.weights.test_gguf_blocks import gguf_of

NO_LIBRARY = cpu.why_not()
needs_library = pytest.mark.skipif(bool(NO_LIBRARY), reason=str(NO_LIBRARY))
PROMPT = "The capital of France is"
FEW = SamplingParams(max_new_tokens=8)


class Counting(Engine):
    """Leaves every step to the modules, and counts what it was asked."""

    name = "counting"

    def __init__(self):
        self.asked = []

    def forward(self, ids, cache, counts=None, lengths=None):
        self.asked.append("forward")

    def logits(self, hidden):
        self.asked.append("logits")

    def new_cache(self, batch_size, capacity):
        self.asked.append("new_cache")

    def decode(self, cache, logits, requests):
        self.asked.append("decode")


@pytest.fixture
def tiny(tmp_path):
    return LLM.from_pretrained(gguf_of("llama", tmp_path, "Q8_0"))


def test_the_modules_run_what_an_engine_leaves(tiny):
    engine, ids = Counting(), [5, 9, 2, 31]
    expected = tiny.generate(ids, FEW).token_ids
    tiny.model = Accelerated(tiny.model, engine)
    assert tiny.generate(ids, FEW).token_ids == expected
    assert engine.asked[:4] == ["new_cache", "forward", "logits", "decode"]
    assert engine.asked.count("forward") == len(expected)
    assert "counting" in repr(tiny)


def test_where_an_op_was_replaced_the_engine_is_not_asked(tiny):
    engine = Counting()
    model = tiny.model = Accelerated(tiny.model, engine)
    before = model.ops

    def mine(q, k, v, mask):
        return attention(q, k, v, mask)

    model.ops = dataclasses.replace(before, attention=mine)
    tiny.generate([5, 9, 2], FEW)
    assert not engine.asked
    model.ops = dataclasses.replace(model.ops, attention=before.attention)  # equal, not the same
    tiny.generate([5, 9, 2], FEW)
    assert engine.asked


def test_the_modules_are_shared(tiny):
    fast = Accelerated(tiny.model, Counting())
    assert fast.layers is tiny.model.layers
    assert fast.state_dict().keys() == tiny.model.state_dict().keys()
    assert [id(p) for p in fast.parameters()] == [id(p) for p in tiny.model.parameters()]


def test_unknown_and_impossible_backends_are_refused(tiny):
    with pytest.raises(ValueError, match="backend is 'gpu'; known are auto, torch, cpu, cuda"):
        accelerate(tiny.model, "gpu")
    with pytest.raises(ValueError, match="'cuda' cannot run this model: the model is on the dev"):
        accelerate(tiny.model, "cuda")
    assert accelerate(tiny.model, "torch") is tiny.model


def test_without_an_engine_auto_says_so_once(tiny, monkeypatch):
    def none(name, model):
        raise Unsupported("it was not built: no compiler")

    monkeypatch.setattr(engines_module, "open_engine", none)
    engines_module._warn_once.cache_clear()
    with pytest.warns(UserWarning, match="plain PyTorch, which is slower: it was not built"):
        assert accelerate(tiny.model) is tiny.model
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert accelerate(tiny.model) is tiny.model
    with pytest.raises(ValueError, match="backend 'cpu' cannot run this model: it was not built"):
        accelerate(tiny.model, "cpu")


@needs_library
def test_auto_takes_the_blocks_where_nothing_else_is_asked_for(tmp_path):
    source, cpu_device = open_source(resolve("smollm2")), torch.device("cpu")

    def form(backend, dtype="auto", quantize=None, kv_cache=None, of=source, device=cpu_device):
        return fastest_form(backend, of, device, dtype, quantize, kv_cache)

    assert form("auto") == form("cpu") == ("gguf", "float16")
    assert form("auto", kv_cache="int8") == ("gguf", "int8")
    assert form("torch") == form("auto", "float32") == (None, None)
    assert form("auto", quantize="int8") == ("int8", None)
    assert form("auto", device=torch.device("mps")) == (None, None)
    plain = open_source(gguf_of("llama", tmp_path, "F16"))
    assert form("auto", of=plain) == (None, None)


@needs_library
def test_a_damaged_gguf_file_beside_good_weights(tmp_path):
    shutil.copytree(saved("llama-mha"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "other.gguf").write_bytes(b"GGUF\3\0\0\0")
    ask = open_source(tmp_path), torch.device("cpu"), "auto", None, None
    engines_module._warn_once.cache_clear()
    with pytest.warns(UserWarning, match=r"blocks of a GGUF file are not used: .*other\.gguf"):
        assert fastest_form("auto", *ask) == (None, None)
    with pytest.raises(ValueError, match=r"other\.gguf"):
        fastest_form("cpu", *ask)


def test_a_wrong_backend_is_refused_before_weights_are_read(tmp_path):
    source, device = open_source(saved("llama-mha")), torch.device("cpu")
    for backend, message in (("gpu", "known are auto"), ("cuda", "is on the device cpu")):
        with pytest.raises(ValueError, match=message):
            fastest_form(backend, source, device, "auto", None, None)


@needs_library
def test_there_is_room_for_all_that_is_packed(tmp_path, monkeypatch):
    asked: list[int] = []

    @contextmanager
    def room(nbytes):
        asked.append(nbytes)
        yield

    monkeypatch.setattr(products, "room", room)
    for path in (resolve("smollm2"), gguf_of("llama", tmp_path, "Q8_0")):
        llm = LLM.from_pretrained(path, quantize="gguf", backend="cpu")
        assert isinstance(llm.model, Accelerated)
        assert isinstance(llm.model.engine, CpuEngine)
        assert llm.model.engine._model is not None
        packed = [x for x in llm.model.engine._model._keep if isinstance(x, products.Weight)]
        head = llm.model.engine._model.head
        assert head is not None
        needed = sum(weight.nbytes + 64 for weight in [*packed, head])
        assert needed <= asked.pop() < 1.03 * needed + 50_000
    LLM.from_pretrained(path, quantize="gguf", backend="torch")
    LLM.from_pretrained(path, backend="auto", dtype="float32")
    assert asked == []


@needs_library
def test_smollm2_fast_through_the_front_door(capsys):
    llm = LLM.from_pretrained("smollm2", backend="auto")
    assert "M parameters, Q4_1/Q8_0/float32, cpu (" in repr(llm)
    assert isinstance(llm.model, Accelerated)
    assert isinstance(llm.model.get_submodule("layers.0.mlp.up_proj"), BlockLinear)
    text = llm.generate(PROMPT, FEW).text
    assert text.startswith(" Paris")
    requests = [llm._job(PROMPT, FEW).request]
    cache = llm.new_cache(1, 40)
    assert llm.kv_cache == "float16"
    assert cache.nbytes == 40 * llm.config.cache_bytes_per_token(2)
    logits = prefill(llm.model, [requests[0].prompt_ids], cache)
    tokens = [token for _, token in decode(llm.model, cache, logits, requests)]
    assert llm.tokenizer.decode(tokens) == text
    assert main(["generate", "--raw", PROMPT, "--max-new-tokens", "8"]) == 0
    assert capsys.readouterr().out == text + "\n"


def test_the_command_line_can_ask_for_plain_pytorch(capsys):
    options = ["--backend", "torch", "--dtype", "float32"]
    assert main(["generate", "--raw", PROMPT, "--max-new-tokens", "3", *options]) == 0
    assert capsys.readouterr().out.startswith(" Paris")
    assert main(["generate", "--raw", PROMPT, "--device", "cpu", "--backend", "cuda"]) == 1
    assert "backend 'cuda' cannot run this model" in capsys.readouterr().err
