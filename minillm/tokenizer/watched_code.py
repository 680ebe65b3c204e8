"""The code that Jinja compiles a template to, with calls of the sandbox around what may be large.

Jinja itself calls the environment for attributes, items, calls and operators such as `+`. The rest
of what makes values or loops is written here.
"""

# ruff: noqa: N802 (Jinja finds the method for a node by the name of its class)

import operator
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.parser import Parser

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda item, values: item in values,
    "notin": lambda item, values: item not in values,
}


class Generation(Extension):
    """The tag `generation` marks, for training, what the model writes. Here it does nothing."""

    tags = {"generation"}  # noqa: RUF012 (an instance variable to Jinja's types)

    def parse(self, parser: Parser) -> nodes.Node:
        """The statements up to `endgeneration`, in a scope of their own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class WatchedCode(CodeGenerator):
    """Writes the Python code of a template that runs in `Sandbox`."""

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        """A block of statements, so also a pass of a loop."""
        self.writeline("environment.budget.tick()")
        super().blockvisit(nodes, frame)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        """A loop; also one whose condition leaves out every item."""
        node.iter = nodes.Call(nodes.EnvironmentAttribute("over"), [node.iter], [], None, None)
        super().visit_For(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """`a ~ b`."""
        self._call("join", node.nodes, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        """`a < b`."""
        values = [
            nodes.Const(part) if isinstance(part, str) else part
            for op in node.ops
            for part in (op.op, op.expr)
        ]
        self._call("compare", [node.expr, *values], frame)

    def _call(self, name: str, values: Iterable[nodes.Expr], frame: Frame) -> None:
        self.write(f"environment.{name}(")
        for value in values:
            self.visit(value, frame)
            self.write(", ")
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        """`[a, b]`."""
        self._made(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        """`{a: b}`."""
        self._made(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        """`(a, b)`, unless it is what a loop or `set` assigns to."""
        visit = super().visit_Tuple
        if node.ctx == "load":
            self._made(visit, node, frame)
        else:
            visit(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        """`a[i:j]`; Jinja passes `a[i]` to the environment."""
        visit = super().visit_Getitem
        if isinstance(node.arg, nodes.Slice):
            self._made(visit, node, frame)
        else:
            visit(node, frame)

    def _made(self, visit: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame) -> None:
        self.write("environment.budget.made(")
        visit(node, frame)
        self.write(")")
