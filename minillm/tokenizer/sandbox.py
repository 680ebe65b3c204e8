"""The Jinja that chat templates run in: it reaches nothing outside, and it ends.

A template comes with a model, from strangers. Jinja's own sandbox keeps it away from Python's
internals, but lets it loop for ever and fill the memory. Here each operation whose cost can grow,
be it a call, a filter, an operator, a literal, a block or an output, is compiled into a call of
the environment, which sums up what was made and looks at the clock. Between two such calls only
work that is linear in the size of one value happens, and sizes are bounded. What can be worse
than linear is bounded beforehand (`PRODUCTS`) or missing: filters, methods and nodes that chat
templates don't use are not there.

Importing this takes 50 ms, which a tokenizer alone need not wait for.
"""

import functools
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import (
    TemplateError,
    TemplateRuntimeError,
    TemplateSyntaxError,
    Undefined,
    nodes,
    pass_context,
)
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from minillm.tokenizer.allowed import ATTRIBUTES, FILTERS, FORBIDDEN, OpaqueNamespace
from minillm.tokenizer.budget import MAX_BITS, PER_MESSAGE, SECONDS, Budget
from minillm.tokenizer.watched_code import COMPARISONS, Generation, WatchedCode

MAX_SOURCE, MAX_NODES = 100_000, 6_000  # characters, and nodes of the syntax tree


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja with the settings and helpers of transformers, for which templates are written.

    budget, now: of the rendering that goes on.
    """

    code_generator_class = WatchedCode
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", Generation],
            # Both keep Jinja from computing constants while it compiles, unwatched.
            optimized=False,
            finalize=_emit,
        )
        filters: dict[str, Any] = {name: self.filters[name] for name in FILTERS}
        filters["tojson"] = _tojson
        tests: dict[str, Any] = self.tests
        self.filters = {name: self._watched(name, run) for name, run in filters.items()}
        self.tests = {name: self._watched(name, run) for name, run in tests.items()}
        self.globals = {name: self.globals[name] for name in ("range", "dict", "cycler", "joiner")}
        self.globals |= {"namespace": OpaqueNamespace, "raise_exception": _raise_exception}
        self.globals["strftime_now"] = self._strftime_now
        self.budget, self.now = Budget(), datetime.now()

    def _watched(self, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def watched(*args: Any, **options: Any) -> Any:
            given = self.budget.admit(name, (*args, *options.values()))
            options = dict(zip(options, given[len(args) :], strict=True))
            return self.budget.made(run(*given[: len(args)], **options))

        return watched

    def call(self, context: Any, function: Any, /, *args: Any, **options: Any) -> Any:
        """A function or method is called."""
        name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
        _, *given = self.budget.admit(name, (owner, *args, *options.values()))
        options = dict(zip(options, given[len(args) :], strict=True))
        self.budget.enter()
        result = super().call(context, function, *given[: len(args)], **options)
        self.budget.leave()
        return self.budget.made(result)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """`left + right` and the like."""
        self.budget.admit(operator, (left, right))
        whole = isinstance(left, int) and isinstance(right, int)
        if operator == "%" and isinstance(left, str):
            raise TemplateRuntimeError("the operator % is for numbers only")
        if operator == "**" and whole and left.bit_length() * right > MAX_BITS:
            raise TemplateRuntimeError(f"{left} ** {right} would make something too long")
        return self.budget.made(super().call_binop(context, operator, left, right))

    def compare(self, left: Any, *rest: Any) -> bool:
        """`left < right == …`, given as the operators' names and the values that follow them."""
        for name, right in zip(rest[::2], rest[1::2], strict=True):
            self.budget.admit(name, (left, right))
            if not COMPARISONS[name](left, right):
                return False
            left = right
        return True

    def emit(self, value: Any) -> str:
        """A value as the text that is written."""
        if isinstance(value, str):
            return value
        self.budget.admit("", (value,))
        return str(self.budget.made(str(value)))

    def concat(self, parts: Iterable[str]) -> str:
        """All that a block writes."""
        parts = list(parts)
        self.budget.count(sum(map(len, parts)))
        return "".join(parts)

    def join(self, *values: Any) -> str:
        """`a ~ b ~ …`."""
        return self.concat(map(self.emit, values))

    def over(self, values: Any) -> Any:
        """What a loop runs over."""
        return values

    def getitem(self, obj: Any, argument: Any) -> Any:
        """`obj[argument]`, also where a filter asks for it."""
        self.budget.tick()
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> None:
        """`str.format` is treated as other methods are, that is, refused."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether an attribute is among those known to be harmless."""
        if isinstance(obj, Namespace):
            return not attr.startswith("_")
        return attr in ATTRIBUTES.get(type(obj), ())

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Any other attribute stops the template, even if it is only tested for."""
        kind = type(obj).__name__
        raise SecurityError(f"a chat template cannot read {attribute!r} of a value of type {kind}")

    def _strftime_now(self, form: str) -> str:
        if len(form) > 200:
            raise TemplateRuntimeError("the format of a date has more than 200 characters")
        return self.now.strftime(form)


class SandboxedTemplate:
    """A template, ready to render.

    source: ValueError or TemplateSyntaxError where it does not parse, or is too long.
    names, words: the variables it reads, and the constants in its code.
    """

    def __init__(self, source: str) -> None:
        self._lock, self._environment = threading.Lock(), Sandbox()
        if len(source) > MAX_SOURCE:
            raise ValueError(f"it has {len(source):,} characters, more than {MAX_SOURCE:,}")
        tree = self._environment.parse(source)
        if sum(1 for _ in tree.find_all(nodes.Node)) > MAX_NODES:
            raise ValueError(f"its code has more than {MAX_NODES:,} parts")
        for node in tree.find_all(tuple(FORBIDDEN)):
            tag = FORBIDDEN[type(node)]
            raise TemplateSyntaxError(f"a chat template cannot use {tag!r}", node.lineno)
        self.names = {node.name for node in tree.find_all(nodes.Name) if node.ctx == "load"}
        self.words = {node.value for node in tree.find_all(nodes.Const)}
        self._template = self._environment.from_string(tree)

    def deadline(self, num_messages: int) -> float:
        """When a rendering that begins now has to end, in processor time of this thread."""
        return time.thread_time() + SECONDS + PER_MESSAGE * num_messages

    def render(self, values: Mapping[str, Any], now: datetime, end: float) -> str:
        """The text for these variables; any exception where the template fails or is stopped.

        now: the time that it sees. end: when the processor time of this thread ends.
        """
        with self._lock:
            self._environment.now = now
            self._environment.budget = Budget(dict(values), end)
            try:
                return self._template.render(values)
            finally:
                self._environment.budget = Budget()


@pass_context
def _emit(context: Any, value: Any) -> str:
    text: str = context.environment.emit(value)
    return text


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if len(indent if isinstance(indent, str) else " " * min(indent or 0, 17)) > 16:
        raise TemplateRuntimeError("tojson indents by 16 characters at most")
    if separators is not None and max(map(len, separators)) > 16:
        raise TemplateRuntimeError("separators of tojson have 16 characters at most")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
