"""The contract of every engine: a forward pass as a whole, in place of the model's modules."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any

from torch import Tensor

from minillm.generate import Request
from minillm.kv_cache.base import KVCache
from minillm.model import Transformer


class Unsupported(ValueError):  # noqa: N818 - it says what is the matter, and is caught
    """Why an engine cannot run a model, or not on this machine; the text completes "because …"."""


class Engine(ABC):
    """Runs the forward pass of one `Transformer`, with the meaning of its modules.

    An engine keeps no state between steps but buffers: everything that a text is made of lies in
    the KV cache, which the engine advances and fills exactly as the modules would, so that both may
    take turns on one cache.
    """

    name: str
    """As it is printed: "cpu (avx2)"."""

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def forward(
        self,
        ids: Tensor,
        cache: KVCache,
        counts: Sequence[int] | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor | None:
        """As `Transformer.forward`: hidden states (B, T, C) after the last norm.

        None, before anything has changed, for a step that the engine does not run: the modules
        run it then. Raises what the modules would raise.
        """

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor | None:
        """As `Transformer.logits`: scores (..., V) in the dtype of hidden (..., C); or None."""

    def new_cache(self, batch_size: int, capacity: int) -> KVCache | None:
        """An empty cache in the model's dtype on the engine's own storage; None: it has none.

        An engine that records its steps needs to find the same storage again.
        """
        return None

    def decode(
        self, cache: KVCache, logits: Tensor, requests: Sequence[Request]
    ) -> Iterator[tuple[Request, int]] | None:
        """As `minillm.generate.decode`, by a loop of the engine's own.

        None, before anything has changed, for requests that it leaves to that one.
        """
        return None


class Accelerated(Transformer):
    """A model with an engine: the same modules, which run only what the engine leaves to them.

    Where one of the model's ops was replaced, the engine steps aside altogether. A copy of it, and
    what `pickle` and `torch.save` write, is the plain model: an engine holds memory of its process.
    `accelerate` gives a copy one of its own.
    """

    def __init__(self, model: Transformer, engine: Engine) -> None:
        self.__dict__.update(model.__dict__)  # nothing is built or copied: the modules are shared
        self.engine, self._engine_ops = engine, model.ops
        self._one_at_a_time = Lock()  # an engine's buffers serve one step

    def __reduce__(self) -> tuple[Any, ...]:
        own = {"engine", "_engine_ops", "_one_at_a_time"}
        return _plain, ({name: x for name, x in vars(self).items() if name not in own},)

    def forward(
        self,
        ids: Tensor,
        cache: KVCache,
        counts: Sequence[int] | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """As of `Transformer`, by the engine where it can."""
        hidden = None
        if self.in_charge:
            with self._one_at_a_time:
                hidden = self.engine.forward(ids, cache, counts, lengths)
        return super().forward(ids, cache, counts, lengths) if hidden is None else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """As of `Transformer`, by the engine where it can."""
        scores = None
        if self.in_charge:
            with self._one_at_a_time:
                scores = self.engine.logits(hidden)
        return super().logits(hidden) if scores is None else scores

    @property
    def in_charge(self) -> bool:
        """Whether the engine may run: the ops are those that it stands for."""
        return self.ops == self._engine_ops


def _plain(parts: dict[str, Any]) -> Transformer:
    model = Transformer.__new__(Transformer)
    model.__dict__.update(parts)
    return model
