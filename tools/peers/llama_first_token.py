"""llama.cpp's counterpart of minillm/bench/first_token.py: a process that says when it got where.

Takes {"model": file, "prompt_ids": [id, …], "threads": N} as its argument and prints seconds since
the epoch, by name, as JSON. Nothing of minillm is imported.
"""

import json
import sys
import time


def main() -> None:
    """Load the model that was asked for, and give the first token of an answer."""
    reached = {"interpreter": time.time()}
    asked = json.loads(sys.argv[1])
    import llama_cpp  # type: ignore[import-not-found,unused-ignore]

    reached["import llama_cpp"] = time.time()
    threads = asked["threads"]
    model = llama_cpp.Llama(
        asked["model"],
        n_ctx=512,
        n_threads=threads,
        n_threads_batch=threads,
        flash_attn=True,
        n_gpu_layers=0,
        verbose=False,
    )
    reached["load"] = time.time()
    pieces = model.create_completion(
        asked["prompt_ids"], max_tokens=2, temperature=0.0, stream=True
    )
    next(iter(pieces))
    reached["first token"] = time.time()
    print(json.dumps(reached))


if __name__ == "__main__":
    main()
