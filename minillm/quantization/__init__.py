"""Quantization: weights as small whole numbers, and what they stand for.

`int8` and `int4` round; `gptq` and `awq` round so that the layer's output changes less; `linear`
is the layer that runs on the result. `minillm.quantize` does it to a whole model.
"""
