"""Measure the heavy demonstrations of the notebooks on the real model and store them in `data/`.

    python tools/precompute.py               # all of them; minutes each
    python tools/precompute.py 03.head_map   # one

Each goes to `data/precomputed/NAME.json`, with the machine, the date and the seconds it took.
"""

import argparse
import json
import time
from datetime import date

from minillm import LLM
from minillm.bench import machine
from minillm.course.precomputed import FOLDER, measurements
from minillm.course.tool.project import write_atomic


def main() -> None:
    """Run the named measurements, or all."""
    known = measurements()
    parser = argparse.ArgumentParser(description="Measure heavy demonstrations into data/.")
    parser.add_argument("names", nargs="*", help=f"from: {', '.join(known)}")
    names = parser.parse_args().names or list(known)
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    llm = LLM.from_pretrained("smollm2", device="cpu", dtype="float32")
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        start = time.perf_counter()
        values = known[name].full(llm)
        seconds = round(time.perf_counter() - start, 1)
        origin = {"model": llm.name, "machine": machine(), "date": str(date.today())}
        text = json.dumps({"name": name, **origin, "seconds": seconds, "values": values}, indent=1)
        write_atomic(FOLDER / f"{name}.json", text + "\n")
        print(f"{name}: {seconds} s")


if __name__ == "__main__":
    main()
