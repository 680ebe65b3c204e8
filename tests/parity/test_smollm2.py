"""The real model: against transformers on the same folder, and against itself in pieces."""

import pytest
import torch

from minillm import LLM, DenseKVCache, prefill
from tests.parity import greedy
from tests.parity.measure import difference
from tools.llama_cpp_parity import gguf_file

TEXT = """
A language model reads a text as a list of tokens and predicts which token comes next. It does so
for every position at once, because each position looks only at those before it. When a program
sends a prompt, the model first runs over all of its tokens. The keys and values that attention
computes on the way are kept in memory. After that the model produces one token at a time. For each
new token it computes one query, compares it with all of the keys that it kept, and mixes the
values. The weights must be read from memory for every single token, and that is why the speed of
writing depends on the speed of memory, while the speed of reading depends on arithmetic. A second
effect comes from the length of the conversation. Every token that was read or written adds its own
keys and values, so the memory grows with the text, and so does the time of a step. People who run
such programs for many users put several conversations into one step. The weights are then read
once for all of them, and the cost of reading is shared. What is not shared is the memory of keys
and values, since each conversation has its own. There are several ways to make it smaller. Heads
can share their keys. Old tokens can be dropped when they are far away. Numbers can be stored with
fewer bits. Each of these has a price, and the price should be measured with a real model and a real
text, because a small change of the output can hide a large change inside. A test that looks at one
answer is not enough.
"""
NEAR_TIE = 1e-3  # top two logits so close may change places with the order of a sum


@pytest.fixture(scope="module")
def ids(llm):
    ids = llm.tokenizer.encode(TEXT)
    assert len(ids) >= 300
    return ids[:300]


@pytest.fixture(scope="module")
def full(llm, ids):
    return llm.logits(ids)


@pytest.fixture(scope="module")
def theirs(smollm2):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    return model.eval().requires_grad_(False)


def test_logits_equal_transformers(theirs, ids, full, record_property):
    found = difference(full, theirs(torch.tensor([ids])).logits[0])
    record_property(
        "figure", f"SmolLM2, 300 tokens: logits differ from transformers' by {found:.1e}"
    )
    assert found < 1e-4


@pytest.fixture(scope="module")
def their_greedy(llm, theirs):
    """transformers' greedy tokens of every prompt, one by one, and the gap of its top two logits.

    Prompts: plain text and conversations. Two lists of tensors: tokens (64,), gaps (64,).
    """
    tokens, gaps = [], []
    for prompt in greedy.prompt_ids(llm):
        out = theirs.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=greedy.NEW_TOKENS,
            min_new_tokens=greedy.NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens.append(out.sequences[0, len(prompt) :].tolist())
        gaps.append(greedy.gaps(torch.cat(out.logits)).tolist())
    return tokens, gaps


@pytest.mark.slow
@pytest.mark.parametrize("source", ["folder", "GGUF file"])
def test_greedy_tokens_equal_transformers(llm, smollm2, their_greedy, source, record_property):
    """64 tokens for each prompt; ours as one batch. Only a near tie may make a difference."""
    if source == "GGUF file":
        llm = LLM.from_pretrained(gguf_file(smollm2), device="cpu", dtype="float32")
    tokens, gaps = their_greedy
    prompts = greedy.prompt_ids(llm)
    found = greedy.partings(llm, prompts, greedy.greedy(llm, prompts), tokens)
    ties = [
        f"prompt {number} after {place} tokens, {gap:.1e}"
        for number, row in enumerate(gaps)
        for place, gap in enumerate(row)
        if gap < NEAR_TIE
    ]
    record_property(
        "figure",
        f"SmolLM2 from its {source}: {len(prompts)} prompts × {greedy.NEW_TOKENS} greedy tokens, "
        f"{len(found)} part from transformers'; near ties: {', '.join(ties) or 'none'}",
    )
    for parting in found:
        assert gaps[parting.prompt][parting.place] < NEAR_TIE, parting


@pytest.mark.parametrize("chunk_size", [1, 37, 128, 299])
def test_chunked_prefill_equals_full(llm, ids, full, chunk_size):
    cache = DenseKVCache(llm.config, 1, 300)
    length = 60 if chunk_size == 1 else 300
    found = prefill(llm.model, [ids[:length]], cache, chunk_size)[0]
    assert difference(found, full[length - 1]) < 1e-5


def test_decode_equals_full(llm, ids, full):
    """From position 250 on token by token, over a cache that prefill filled."""
    cache = DenseKVCache(llm.config, 1, 300)
    found = [prefill(llm.model, [ids[:250]], cache)[0]]
    found += [
        llm.model.logits(llm.model(torch.tensor([[token]]), cache)[0, -1]) for token in ids[250:]
    ]
    assert difference(torch.stack(found), full[249:]) < 1e-5


def test_ragged_batch_equals_full(llm, ids, full):
    lengths = [300, 1, 17, 128]
    cache = DenseKVCache(llm.config, 4, 301)
    found = prefill(llm.model, [ids[:length] for length in lengths], cache, 100)
    for row, length in zip(found, lengths, strict=True):
        assert difference(row, full[length - 1]) < 1e-5
    step = torch.tensor([[ids[length % 300]] for length in lengths])
    found = llm.model.logits(llm.model(step, cache)[:, -1])
    for row, length in zip(found[1:], lengths[1:], strict=True):
        assert difference(row, full[length]) < 1e-5


def test_bfloat16_stays_near(smollm2, ids, full):
    """bfloat16 keeps 8 bits: the top token agrees nearly everywhere, the loss moves little."""
    rough = LLM.from_pretrained(smollm2, device="cpu", dtype="bfloat16").logits(ids[:100])
    agree = (rough.argmax(-1) == full[:100].argmax(-1)).float().mean()
    assert agree > 0.9
    targets = torch.tensor(ids[1:100])
    losses = [
        torch.nn.functional.cross_entropy(logits[:99], targets) for logits in (rough, full[:100])
    ]
    assert abs(losses[0] - losses[1]) < 0.05


def test_mean_loss_is_plausible(full, ids):
    """A wrong layout, mask or position still looks fluent; the loss of plain English tells."""
    loss = torch.nn.functional.cross_entropy(full[:-1], torch.tensor(ids[1:]))
    assert loss < 4.0
