"""The front door, on the real model: text, streams, batches, stops, statistics, errors."""

import gc
import weakref

import pytest
import torch

from minillm import LLM, SamplingParams
from minillm.kv_cache.dense import DenseKVCache

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = SamplingParams(max_new_tokens=12)


def test_chat_answers_and_stops(llm):
    output = llm.chat(QUESTION)
    assert output.text == "The capital of France is Paris."
    assert output.finish_reason == "stop"
    assert output.token_ids[-1] in llm.eos_token_ids
    assert "".join(llm.stream_chat(QUESTION)) == output.text


def test_a_bare_question_ends_at_once(llm):
    output = llm.generate(QUESTION[0]["content"])
    assert (output.text, output.finish_reason, len(output.token_ids)) == ("", "stop", 1)


def test_stream_equals_generate(llm):
    output = llm.generate("Water boils at", GREEDY)
    assert output.text.startswith(" 100°C")
    stream = llm.stream("Water boils at", GREEDY)
    pieces = list(stream)
    assert "".join(pieces) == output.text == stream.output.text
    assert all(pieces)
    assert "\ufffd" not in output.text
    assert stream.output.token_ids == output.token_ids
    assert stream.output.finish_reason == output.finish_reason == "length"


def test_ids_and_text_are_the_same_prompt(llm):
    ids = llm.tokenizer.encode("1, 2, 3, 4,")
    by_text = llm.generate("1, 2, 3, 4,", GREEDY)
    assert llm.generate(ids, GREEDY).text == by_text.text
    assert llm.generate(torch.tensor(ids), GREEDY).text == by_text.text
    assert by_text.text.startswith(" 5, 6, 7, 8")


def test_logits_predict_every_position(llm):
    ids = llm.tokenizer.encode("The capital of France is")
    logits = llm.logits(ids)
    assert logits.shape == (len(ids), llm.config.vocab_size)
    assert logits.dtype == torch.float32
    assert llm.tokenizer.decode([int(logits[-1].argmax())]) == " Paris"


def test_batch_equals_one_by_one(llm):
    prompts = ["Water boils at", "The opposite of hot is", llm.chat_ids(QUESTION)]
    each = [SamplingParams(max_new_tokens=n, temperature=0.8, seed=n) for n in (5, 14, 9)]
    together = llm.generate(prompts, each)
    for prompt, params, output in zip(prompts, each, together, strict=True):
        alone = llm.generate(prompt, params)
        assert (output.text, output.token_ids, output.finish_reason) == (
            alone.text,
            alone.token_ids,
            alone.finish_reason,
        )


def test_batch_edges(llm):
    assert llm.generate([]) == []
    assert [o.text for o in llm.generate(["Water boils at"], GREEDY)] == [
        llm.generate("Water boils at", GREEDY).text
    ]
    with pytest.raises(ValueError, match="2 prompts, but 1 SamplingParams"):
        llm.generate(["a", "b"], [GREEDY])
    with pytest.raises(ValueError, match="list of as many prompts"):
        llm.generate("a", [GREEDY])


def test_seed_belongs_to_the_request(llm):
    params = SamplingParams(max_new_tokens=8, temperature=1.5, seed=11)
    first = llm.generate("Once upon a time", params).token_ids
    torch.manual_seed(0)  # nobody's global generator takes part
    before = torch.get_rng_state()
    llm.generate("Once upon a time", SamplingParams(max_new_tokens=3, temperature=1.0))
    assert torch.equal(torch.get_rng_state(), before)
    assert llm.generate("Once upon a time", params).token_ids == first


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (" 7", " 5, 6,"),
        ("6, 7", " 5, "),  # over a token border
        (["8", ", 7"], " 5, 6"),
        ("5", " "),
        ("never", None),
    ],
)
def test_s06_stop_strings(llm, stop, text):
    plain = llm.generate("1, 2, 3, 4,", GREEDY)
    params = SamplingParams(max_new_tokens=12, stop=stop)
    stream = llm.stream("1, 2, 3, 4,", params)
    pieces = "".join(stream)
    assert pieces == stream.output.text == llm.generate("1, 2, 3, 4,", params).text
    if text is None:
        assert pieces == plain.text
        assert stream.output.finish_reason == "length"
    else:
        assert pieces == text
        assert stream.output.finish_reason == "stop"
        assert len(stream.output.token_ids) < 12


def test_a02_finish_reasons(llm):
    chat = llm.chat(QUESTION)
    exact = SamplingParams(max_new_tokens=len(chat.token_ids))
    assert llm.chat(QUESTION, exact).finish_reason == "stop"  # the end token is the last allowed
    short = SamplingParams(max_new_tokens=len(chat.token_ids) - 1)
    assert llm.chat(QUESTION, short).finish_reason == "length"
    assert llm.chat(QUESTION, short).text == chat.text
    comma = llm.tokenizer.encode(",")[0]
    by_id = llm.generate("1, 2, 3, 4,", SamplingParams(stop_token_ids=[comma, 7]))
    assert (by_id.text, by_id.finish_reason, by_id.token_ids[-1]) == (" 5", "stop", comma)
    going_on = SamplingParams(max_new_tokens=12, ignore_eos=True)
    assert len(llm.chat(QUESTION, going_on).token_ids) == 12


def test_statistics(llm):
    stats = llm.generate("Water boils at", GREEDY).stats
    assert (stats.prompt_tokens, stats.output_tokens, len(stats.itl_s)) == (3, 12, 11)
    assert stats.ttft_s > 0
    assert all(seconds > 0 for seconds in stats.itl_s)
    assert stats.decode_tokens_per_s == pytest.approx(11 / sum(stats.itl_s))
    assert stats.prefill_tokens_per_s == pytest.approx(3 / stats.ttft_s)
    # 3 prompt tokens and 12 new ones; nothing is computed from the last one.
    assert stats.cache_bytes == 14 * llm.config.cache_bytes_per_token(4)


@pytest.fixture
def caches(monkeypatch):
    """Weak references to every cache that is made."""
    made = []
    plain = DenseKVCache.__init__

    def init(self, *args, **kwargs):
        plain(self, *args, **kwargs)
        made.append(weakref.ref(self))

    monkeypatch.setattr(DenseKVCache, "__init__", init)
    return made


def test_closing_a_stream_frees_its_cache(llm, caches):
    stream = llm.stream("Once upon a time")
    next(stream)
    assert caches[0]() is not None
    stream.close()
    gc.collect()
    assert caches[0]() is None
    assert list(stream) == []
    assert stream.output.finish_reason is None
    with llm.stream("Once upon a time") as stream:
        next(stream)
    gc.collect()
    assert caches[1]() is None


def test_an_interrupt_leaves_the_model_usable(llm, caches, monkeypatch):
    expected = llm.generate("Water boils at", GREEDY).text
    calls = 0
    plain = type(llm.model).logits

    def interrupted(self, hidden):
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return plain(self, hidden)

    with monkeypatch.context() as patch:
        patch.setattr(type(llm.model), "logits", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("Water boils at", GREEDY)
    gc.collect()
    assert [cache() for cache in caches] == [None, None]
    assert llm.generate("Water boils at", GREEDY).text == expected


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "has no tokens"),
        ([], None),
        ([[]], "has no tokens"),
        ([-1], "token id -1"),
        ([49_152], "token id 49152 is not a whole number from 0 to 49151"),
        ([1.5], "token id 1.5"),
        ([True], "token id True"),
        ([1] * 8_193, "the prompt has 8193 tokens; the context holds 8192"),
        ("broken \ud83d", "surrogate"),
    ],
)
def test_bad_prompts(llm, prompt, message):
    if message is None:
        assert llm.generate(prompt) == []
        return
    with pytest.raises(ValueError, match=message):
        llm.generate(prompt)


def test_the_context_ends_the_output(smollm2):
    """With a context of 16: 12 tokens of prompt leave room for 4 steps, so 5 tokens come out."""
    import dataclasses

    from minillm.config import read_json
    from minillm.hf_config import read_config
    from minillm.tokenizer import Tokenizer
    from minillm.weights.load import load_transformer
    from minillm.weights.safetensors import open_weights

    config = read_config(read_json(smollm2 / "config.json"))
    config = dataclasses.replace(config, max_position_embeddings=16)
    tokenizer = Tokenizer.from_file(smollm2 / "tokenizer.json")
    small = LLM(load_transformer(config, open_weights(smollm2)), tokenizer)
    output = small.generate(list(range(100, 112)))
    assert (len(output.token_ids), output.finish_reason) == (5, "length")
    assert len(small.generate(list(range(100, 116))).token_ids) == 1
    with pytest.raises(ValueError, match="17 tokens; the context holds 16"):
        small.generate(list(range(100, 117)))
    with pytest.raises(ValueError, match="no chat template"):
        small.chat(QUESTION)


def tiny(window=None, sinks=0, global_every=None):
    """Two random layers with a context of 32; its ids are bytes."""
    from minillm.config import LayerConfig, ModelConfig
    from minillm.model import Transformer
    from minillm.tokenizer import Tokenizer

    config = ModelConfig(
        vocab_size=256,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=32,
        layers=(LayerConfig(),) * 2,
    )
    if window is not None:
        config = config.with_window(window, sinks=sinks, global_every=global_every)
    torch.manual_seed(0)
    return LLM(Transformer(config).requires_grad_(False), Tokenizer.train([], vocab_size=256))


def ids(length, seed=0):
    return torch.randint(256, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("sinks", [0, 2])
def test_windows_in_every_layer_lift_the_limit_of_the_context(sinks):
    """300 tokens of prompt and 100 of answer, with a context of 32, in the memory of one window."""
    small = tiny(window=8, sinks=sinks)
    params = SamplingParams(max_new_tokens=100, temperature=1.0, seed=3)
    stream = small.stream(ids(300), params)
    assert "".join(stream) == stream.output.text
    output = stream.output
    assert (len(output.token_ids), output.finish_reason) == (100, "length")
    assert output.stats.cache_bytes == (8 + sinks) * small.config.cache_bytes_per_token(4)
    assert output.token_ids == small.generate(ids(300), params).token_ids
    logits = small.logits(ids(300))
    assert logits.shape == (300, 256)
    assert torch.isfinite(logits).all()


def test_long_batches_with_windows_equal_one_by_one():
    small = tiny(window=8, sinks=1)
    prompts = [ids(n, seed=n) for n in (3, 200, 31, 33)]
    params = [SamplingParams(max_new_tokens=n) for n in (90, 10, 40, 5)]
    together = small.generate(prompts, params)
    for prompt, each, output in zip(prompts, params, together, strict=True):
        assert output.token_ids == small.generate(prompt, each).token_ids
        assert output.stats.cache_bytes == 9 * small.config.cache_bytes_per_token(4)


@pytest.mark.parametrize("arguments", [{}, {"window": 8, "global_every": 2}, {"window": 33}])
def test_the_context_holds_where_a_layer_sees_further(arguments):
    small = tiny(**arguments)
    with pytest.raises(ValueError, match="33 tokens; the context holds 32"):
        small.generate(ids(33))
    output = small.generate(ids(30), SamplingParams(max_new_tokens=100))
    assert (len(output.token_ids), output.finish_reason) == (3, "length")
    places = {8: 8 + 32, 33: 32 + 32}.get(arguments.get("window", 33))
    assert output.stats.cache_bytes == places * small.config.cache_bytes_per_token(4) / 2


def test_a_window_on_the_real_model(smollm2, llm):
    from minillm.kv_cache.sliding import SlidingKVCache

    few = LLM.from_pretrained(smollm2, device="cpu", dtype="float32", window=16, sinks=1)
    assert few.config == llm.config.with_window(16, sinks=1)
    assert isinstance(few.new_cache(1, 100), SlidingKVCache)
    assert isinstance(llm.new_cache(1, 100), DenseKVCache)
    prompt = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,"
    output = few.generate(prompt, GREEDY)
    assert output.text.startswith(" 13, 14,")
    assert output.stats.cache_bytes == 17 * few.config.cache_bytes_per_token(4)
    with pytest.raises(ValueError, match="sinks and global_every need a window"):
        LLM.from_pretrained(smollm2, sinks=4)
    with pytest.raises(ValueError, match="window is -1"):
        LLM.from_pretrained(smollm2, window=-1)


def test_ids_without_a_token_are_never_picked():
    """A vocabulary that is larger than the tokenizer's, as in Qwen: the spare ids have no text."""
    from minillm.config import LayerConfig, ModelConfig
    from minillm.model import Transformer
    from minillm.tokenizer import Tokenizer

    config = ModelConfig(
        vocab_size=400,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        layers=(LayerConfig(),),
    )
    torch.manual_seed(0)
    padded = LLM(Transformer(config).requires_grad_(False), Tokenizer.train([], vocab_size=256))
    assert padded.unused_ids == list(range(256, 400))
    params = SamplingParams(max_new_tokens=60, temperature=5.0, seed=0)
    assert max(padded.generate([1], params).token_ids) < 256


def test_nan_weights_are_an_error_and_not_a_token(smollm2):
    broken = LLM.from_pretrained(smollm2, device="cpu", dtype="float32")
    nothing = torch.full((broken.config.hidden_size,), float("nan"))
    broken.model.norm.weight = torch.nn.Parameter(nothing, requires_grad=False)
    with pytest.raises(ValueError, match="NaN"):
        broken.generate("Water boils at")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "tpu"}, "device 'tpu' cannot be used here"),
        ({"device": "meta"}, "device 'meta' cannot be used here"),
        ({"device": "hpu"}, "device 'hpu' cannot be used here"),
        ({"device": "vulkan"}, r"device 'vulkan' cannot be used here \([^.]*'[^ ]*'[^.]*\); try"),
        ({"dtype": "int8"}, "dtype is 'int8'; allowed are auto, float32, bfloat16, float16"),
        ({"dtype": torch.float64}, "dtype is 'torch.float64'"),
    ],
)
def test_bad_device_and_dtype(smollm2, arguments, message):
    with pytest.raises(ValueError, match=message):
        LLM.from_pretrained(smollm2, **arguments)


def test_a_model_that_is_not_here_says_how_to_get_it():
    with pytest.raises(FileNotFoundError, match="minillm pull"):
        LLM.from_pretrained("nobody/has-this-model")


def test_weights_are_mapped_and_not_copied(llm, smollm2):
    from minillm.weights.safetensors import open_weights

    assert all(not parameter.requires_grad for parameter in llm.model.parameters())
    mapped = {w.untyped_storage().filename for w in open_weights(smollm2).values()}
    used = {p.untyped_storage().filename for p in llm.model.parameters()}
    assert used == mapped


def test_repr_says_what_it_is(llm):
    assert repr(llm) == "LLM('smollm2', 134.5M parameters, float32, cpu)"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_cuda_answers(smollm2, dtype):
    llm = LLM.from_pretrained(smollm2, device="cuda", dtype=dtype)
    assert "Paris" in llm.chat(QUESTION).text
