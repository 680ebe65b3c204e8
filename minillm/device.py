"""Where a model runs, and in what type."""

import torch

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def pick_device(device: str | torch.device) -> torch.device:
    """The device of this name; "auto" takes CUDA, else Apple's MPS, else the CPU."""
    if str(device) == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.zeros(1, device=found).item()  # which "meta", where no number is kept, refuses
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ValueError(
            f"device {str(device)!r} cannot be used here "
            f"({str(error).splitlines()[0].split('. ')[0]}); try auto, cpu, cuda or mps"
        ) from error
    return found


def pick_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of this name; "auto" is what is fast on the device and loses little."""
    if isinstance(dtype, torch.dtype) and dtype in DTYPES.values():
        return dtype
    if dtype == "auto":
        if device.type == "cpu":
            return torch.float32
        bf16 = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if bf16 else torch.float16
    if str(dtype) not in DTYPES:
        raise ValueError(f"dtype is {str(dtype)!r}; allowed are auto, {', '.join(DTYPES)}")
    return DTYPES[str(dtype)]
