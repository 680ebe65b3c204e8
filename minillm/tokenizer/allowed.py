"""What of Jinja and of Python's values a chat template may use: what those of models do use."""

from jinja2 import nodes
from jinja2.filters import _GroupTuple
from jinja2.runtime import LoopContext
from jinja2.utils import Cycler, Namespace
from markupsafe import Markup

FILTERS = (
    *("abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float"),
    *("groupby", "indent", "int", "items", "join", "last", "length", "list", "lower", "map"),
    *("max", "min", "reject", "rejectattr", "replace", "reverse", "safe", "select", "selectattr"),
    *("sort", "string", "title", "trim", "unique", "upper"),
)
TEXT_METHODS = (
    *("capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii"),
    *("isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join"),
    *("lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex"),
    *("rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase"),
    *("title", "upper"),
)
LOOP = (
    *("changed", "cycle", "depth", "depth0", "first", "index", "index0", "last", "length"),
    *("nextitem", "previtem", "revindex", "revindex0"),
)
ATTRIBUTES: dict[type, tuple[str, ...]] = {
    str: TEXT_METHODS,
    Markup: TEXT_METHODS,
    dict: ("get", "items", "keys", "values"),
    list: ("count", "index"),
    tuple: ("count", "index"),
    LoopContext: LOOP,
    Cycler: ("current", "next", "reset"),
    _GroupTuple: ("grouper", "list"),
}
FORBIDDEN: dict[type[nodes.Node], str] = {
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "from",
    nodes.Extends: "extends",
    nodes.Block: "block",
    nodes.ScopedEvalContextModifier: "autoescape",
}


class OpaqueNamespace(Namespace):
    """A namespace that does not print what it holds, which may be other namespaces, or itself."""

    def __repr__(self) -> str:
        return "<Namespace>"
