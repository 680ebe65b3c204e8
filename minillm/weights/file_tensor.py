"""A tensor in a file, on its way to a device and a dtype.

Where neither changes, the file's own pages are the tensor. Where one does, the file is read in
small pieces instead of through its map: pages of a map, once read, stay in the process's memory,
beside the converted values.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

FLOATS = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)

# Values that are converted at a time. They stay in a core's cache, and torch converts so few
# without waking other threads, which on a busy machine takes longer than the conversion.
CHUNK = 2**15
# To another device larger pieces go, so that the start of each transfer does not count.
DEVICE_CHUNK = 2**22


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor in a safetensors file: `offset` bytes after the start of `path`.

    mapped: its values as a view of the file, in the stored shape and dtype.
    """

    path: Path
    offset: int
    mapped: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        """Size along each dimension."""
        return self.mapped.shape

    @property
    def dtype(self) -> torch.dtype:
        """Type of the stored values."""
        return self.mapped.dtype

    def is_floating_point(self) -> bool:
        """Whether the stored values are floating-point numbers by themselves.

        Formats that are scales (F8_E8M0), or pack two numbers into a byte (F4), are not.
        """
        return self.dtype in FLOATS

    def view(self) -> torch.Tensor:
        """The stored values, uncopied unless they stand at an address unfit for their dtype."""
        misplaced = self.mapped.data_ptr() % self.mapped.element_size()
        return self.mapped.clone() if misplaced else self.mapped

    def to(
        self, *, device: torch.device | str, dtype: torch.dtype, copy: bool = False
    ) -> torch.Tensor:
        """The values on `device` in `dtype`, rounded to nearest where it is narrower.

        A view of the file where both are the file's own, unless a copy is wanted. Otherwise needs
        little memory beyond the result: the file is read CHUNK or DEVICE_CHUNK values at a time.
        Raises ValueError where the file has become shorter since it was opened.
        """
        device = torch.device(device)
        if device.type == "cpu" and dtype == self.dtype and not copy:
            return self.view()
        placed = torch.empty(self.shape, device=device, dtype=dtype)
        flat = placed.view(-1)
        chunk = max(1, min(flat.numel(), CHUNK if device.type == "cpu" else DEVICE_CHUNK))
        buffer = memoryview(bytearray(chunk * self.dtype.itemsize))
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for begin in range(0, flat.numel(), chunk):
                target = flat[begin : begin + chunk]
                piece = buffer[: target.numel() * self.dtype.itemsize]
                if file.readinto(piece) != len(piece):
                    raise ValueError(f"{self.path}: changed while it was read")
                target.copy_(torch.frombuffer(piece, dtype=self.dtype))
        return placed
