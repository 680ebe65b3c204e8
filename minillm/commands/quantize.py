"""`minillm quantize`: write a model with weights of few bits."""

import argparse
import sys
from pathlib import Path

from minillm.calibration import calibration_sequences, course_calibration_text
from minillm.commands.options import read_text
from minillm.llm import LLM
from minillm.quantization.linear import quantizable
from minillm.quantization.scheme import CALIBRATED, Scheme
from minillm.quantize import quantize_model


def run(arguments: argparse.Namespace) -> None:
    """Print the folder that then holds the model; what was done to stderr."""
    out = Path(arguments.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):  # before minutes are spent
        raise FileExistsError(f"{out} is there already; a new or an empty folder is needed")
    text = read_text(arguments.calibration) if arguments.calibration else None
    llm = LLM.from_pretrained(arguments.model, device=arguments.device, dtype=arguments.dtype)
    scheme = Scheme.of(
        arguments.method,
        {linear.in_features for linear in quantizable(llm.model).values()},
        bits=arguments.bits,
        group_size=arguments.group_size,
        symmetric=arguments.symmetric,
        act_order=arguments.act_order,
    )
    sequences: list[list[int]] = []
    if scheme.method in CALIBRATED:
        ids = llm.tokenizer.encode(course_calibration_text() if text is None else text)
        sequences = calibration_sequences(
            ids, tokens=arguments.calibration_tokens, seed=arguments.seed
        )
    report = quantize_model(llm.model, scheme, sequences)
    print(report, file=sys.stderr)
    print(llm.save(out))
