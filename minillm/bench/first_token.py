"""A process of its own that says when it reached what, on its way to a first token.

Run by `minillm.bench.cold` as a file, so that nothing is imported before its clock starts. Takes
{"model": name, "options": {…}, "prompt_ids": [id, …]} as its argument, with "threads": N where
PyTorch is to use so many, and prints seconds since the epoch, by name, as JSON.
"""

import json
import sys
import time


def main() -> None:
    """Load the model that was asked for, and give the first token of an answer."""
    reached = {"interpreter": time.time()}
    asked = json.loads(sys.argv[1])
    import torch

    if "threads" in asked:
        torch.set_num_threads(asked["threads"])
    reached["import torch"] = time.time()
    from minillm import LLM, SamplingParams

    reached["import minillm"] = time.time()
    llm = LLM.from_pretrained(asked["model"], **asked["options"])
    reached["load"] = time.time()
    params = SamplingParams(max_new_tokens=2, ignore_eos=True)
    stream = llm.stream(asked["prompt_ids"], params)
    while not stream.output.token_ids:  # a token may end without a piece of text
        next(stream)
    reached["first token"] = time.time()
    sys.stdout.write(json.dumps(reached) + "\n")


if __name__ == "__main__":
    main()
