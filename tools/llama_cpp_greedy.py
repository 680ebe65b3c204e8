"""Greedy tokens by llama.cpp, for a Python that has llama-cpp-python; minillm is not needed.

Reads {"model": path, "prompts": [[id, …], …], "new_tokens": N} from standard input and writes the
new ids of each prompt, [[id, …], …], as the last line of standard output.
"""

import itertools
import json
import sys

from llama_cpp import Llama  # type: ignore[import-not-found,unused-ignore]


def main() -> None:
    """Answer the request on standard input."""
    asked = json.load(sys.stdin)
    longest = max(map(len, asked["prompts"])) + asked["new_tokens"]
    model = Llama(asked["model"], n_ctx=longest, n_threads=1, n_gpu_layers=0, verbose=False)
    answers = []
    for prompt in asked["prompts"]:
        tokens = model.generate(prompt, temp=0.0, repeat_penalty=1.0, reset=True)
        answers.append(list(itertools.islice(tokens, asked["new_tokens"])))
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
