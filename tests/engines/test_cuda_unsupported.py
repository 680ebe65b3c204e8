"""What the CUDA engine refuses at its construction, and says why."""

from dataclasses import replace

import pytest
import torch

from minillm.config import ExpertsConfig, LayerConfig
from minillm.engines import accelerate
from minillm.engines.base import Unsupported
from minillm.engines.cuda import CudaEngine
from minillm.quantization.linear import put
from tests.engines.cuda_models import BASE, transformer
from tests.engines.kernels import has_triton, kernels_of


def test_unsupported_models():
    layer = LayerConfig(experts=ExpertsConfig(4, 2, 16))
    experts = transformer(replace(BASE, layers=(layer,) * 3))
    with pytest.raises(Unsupported, match="mixture of experts"):
        CudaEngine(experts, kernels_of("plain"))
    model = transformer(BASE)
    put(model, "layers.0.mlp.down_proj", torch.nn.Identity())
    with pytest.raises(Unsupported, match="a layer is a Identity"):
        CudaEngine(model, kernels_of("plain"))


def test_rows_that_are_too_wide_for_the_kernels():
    with pytest.raises(Unsupported, match="its heads have 264 numbers and its rows 1056; the ker"):
        CudaEngine(transformer(replace(BASE, head_dim=264)), kernels_of("plain"))
    narrow = replace(BASE, num_hidden_layers=1, layers=BASE.layers[:1], intermediate_size=1)
    wide = replace(narrow, vocab_size=2, hidden_size=16_400, head_dim=2)
    with pytest.raises(Unsupported, match="its rows 16400; the kernels take up to 256 and 16384"):
        CudaEngine(transformer(wide), kernels_of("plain"))


def test_weights_on_several_devices():
    model = transformer(BASE)
    model.layers[1].to("meta")
    with pytest.raises(Unsupported, match=r"on several devices: .*meta"):
        CudaEngine(model, kernels_of("plain"))


@has_triton
def test_triton_that_cannot_compile(monkeypatch):
    """It needs a C compiler, which a machine may lack, and notices at the first launch."""

    def launch(*_):
        raise RuntimeError("Failed to find C compiler.\nPlease specify")

    monkeypatch.setattr("minillm.kernels.triton.norm.rms_norm", launch)
    with pytest.raises(Unsupported, match=r"kernel here \(RuntimeError: Failed to find C compil"):
        CudaEngine(transformer(BASE))


def test_without_a_gpu_the_backend_is_refused_in_words():
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(ValueError, match="backend 'cuda' cannot run this model: the model is on"):
        accelerate(transformer(BASE), "cuda")
