"""Speed beside transformers, in one process, taking turns. Printed, never asserted."""

import pytest

from minillm.bench import machine, measure, minillm_engine, transformers_engine


@pytest.mark.parametrize("prompt_tokens", [42, 300, 1_000])
def test_speed_beside_transformers(llm, smollm2, prompt_tokens, record_property):
    engines = {"minillm": minillm_engine(llm), "transformers": transformers_engine(smollm2)}
    ours, theirs = measure(
        engines, llm.config.vocab_size, prompt_tokens=prompt_tokens, new_tokens=17, runs=3
    )
    here = machine()
    record_property(
        "figure",
        f"{prompt_tokens:>5} prompt tokens, tokens/s, minillm : transformers: "
        f"prefill {ours.prefill_tokens_per_s:.0f} : {theirs.prefill_tokens_per_s:.0f} "
        f"({theirs.ttft_s / ours.ttft_s:.2f} ×), "
        f"decode {ours.decode_tokens_per_s:.1f} : {theirs.decode_tokens_per_s:.1f} "
        f"({theirs.itl_s / ours.itl_s:.2f} ×) on {here['cpu']}, {here['threads']} threads",
    )
    assert ours.prompt_tokens == theirs.prompt_tokens == prompt_tokens
    assert min(ours.ttft_s, theirs.ttft_s, ours.itl_s, theirs.itl_s) > 0
