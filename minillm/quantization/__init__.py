"""Quantization: weights as small whole numbers, and what they stand for.

`int8`, `int4` and `nf4` round; `gptq` and `awq` do so with less change to the output; `linear`
is the layer that runs on the result. `minillm.quantize` does it to a whole model.
"""
