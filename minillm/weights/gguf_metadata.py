"""The metadata of one architecture in a GGUF file: values by key, with their type and range."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Metadata:
    """All metadata of a file; keys are asked for without their leading architecture name.

    Every method raises ValueError, with the key and the value, where a value is not what it must
    be, or is not there and has no default.
    """

    values: dict[str, Any]
    architecture: str

    def refuse_unknown(self, known: Set[str]) -> None:
        """Raise for a key of the architecture that is not `known`: it could change the result."""
        prefix = f"{self.architecture}."
        keys = {key for key in self.values if key.startswith(prefix)}
        if unknown := keys - {prefix + key for key in known}:
            raise ValueError(f"metadata that cannot be carried over: {', '.join(sorted(unknown))}")

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it is in the file."""
        return self.values.get(f"{self.architecture}.{key}", default)

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number from `least` on."""
        number = self.get(key, default)
        whole = isinstance(number, int) and not isinstance(number, bool)
        if not whole or not least <= number < 2**31:
            raise ValueError(
                f"{self.architecture}.{key} is {number!r:.80}; a whole number from {least} is "
                "needed"
            )
        return int(number)

    def decimal(self, key: str, default: float | None = None) -> float:
        """A number above 0: a float32 as its shortest decimal, 1e-05 for 9.999999747378752e-06."""
        number = self.get(key, default)
        if not isinstance(number, float) or not 0 < number < float("inf"):
            raise ValueError(
                f"{self.architecture}.{key} is {number!r:.80}; a number above 0 is needed"
            )
        return shortest(number)


def shortest(number: float) -> float:
    """The shortest decimal that is the same number in float32."""
    return float(str(np.float32(number)))
