"""The Jinja environment that chat templates run in: sandboxed, and it ends.

Importing this takes 50 ms, which a tokenizer alone need not wait for.
"""

import json
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.sandbox import ImmutableSandboxedEnvironment

# A conversation takes a few passes of a loop for each of its messages.
MAX_PASSES = 100_000
MAX_LENGTH = 10_000_000  # of what a text or list times a number gives
MAX_POWER = 1_000  # the largest base and exponent of **


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja with the settings and helpers of transformers, for which templates are written.

    Jinja's sandbox keeps a template away from Python's internals but lets it loop for ever, as in
    two nested loops over `range(99999)`. Here every pass of a loop is counted, and `*` and `**`
    make nothing huge. Other ways to build a huge text, such as the filter `center`, are open.
    """

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
            # Both keep Jinja from computing constants while it compiles, unwatched.
            optimized=False,
            finalize=_unchanged,
        )
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self.passes = 0

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Called by Jinja in place of the intercepted operators."""
        numbers = [abs(value) for value in (left, right) if isinstance(value, int | float)]
        lengths = [len(value) for value in (left, right) if isinstance(value, str | list | tuple)]
        if operator == "**":
            huge = any(number > MAX_POWER for number in numbers)
        else:
            huge = bool(numbers and lengths) and numbers[0] * lengths[0] > MAX_LENGTH
        if huge:
            raise TemplateError(f"{operator!r} with {max(numbers)} would make something huge")
        return super().call_binop(context, operator, left, right)

    def count_pass(self) -> bool:
        """Called by the template itself in every pass of a loop."""
        self.passes += 1
        if self.passes > MAX_PASSES:
            raise TemplateError(f"its loops make more than {MAX_PASSES:,} passes")
        return True

    def compile_template(self, source: str) -> Template:
        """Parse a template and let each of its loops begin by counting."""
        tree = self.parse(source)
        for loop in tree.find_all(nodes.For):
            count = nodes.Call(nodes.EnvironmentAttribute("count_pass"), [], [], None, None)
            # A condition is tried before the body, also for items that it leaves out.
            loop.test = count if loop.test is None else nodes.And(count, loop.test)
            loop.test.set_lineno(loop.lineno).set_environment(self)
        return self.from_string(tree)


@pass_context
def _unchanged(context: Any, value: Any) -> Any:
    return value


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)
