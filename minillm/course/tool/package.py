"""Rules about the package: which way imports point, how long the core is, what is taught where."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from minillm.course.tool import notebook as nb
from minillm.course.tool.project import Project
from minillm.course.tool.source import code_lines, public_names

# A part of the package may import only parts of the lines above its own.
LEVELS = (
    ("config",),
    ("families", "tokenizer", "sampling", "layers"),
    ("hf_quantization",),
    ("hf_config", "ops"),
    ("kernels",),
    ("quantization",),
    ("kv_cache",),
    ("model",),
    ("calibration",),
    ("weights", "generate", "device", "quantize"),
    ("engines",),
    ("streaming",),
    ("llm", "gqa"),
    ("bench", "eval", "inspection"),
    ("doctor",),
    ("commands",),
    ("cli", "course"),
    ("__main__",),
)
# What runs the course's own model: from its text and its weights to the streamed answer. Not what
# reads other descriptions of a model, writes a conversation as text, or other families need.
CORE = (
    "config.py",
    "tokenizer/added.py",
    "tokenizer/bpe.py",
    "tokenizer/checks.py",
    "tokenizer/detokenize.py",
    "tokenizer/hf_json.py",
    "tokenizer/hf_parts.py",
    "tokenizer/pretokenize.py",
    "tokenizer/stop.py",
    "tokenizer/vocabulary.py",
    "layers/attention.py",
    "layers/embedding.py",
    "layers/mlp.py",
    "layers/norm.py",
    "layers/rope.py",
    "ops.py",
    "model.py",
    "kv_cache/base.py",
    "kv_cache/dense.py",
    "sampling.py",
    "generate.py",
    "weights/file_tensor.py",
    "weights/safetensors.py",
    "device.py",
    "streaming.py",
    "llm.py",
)
CORE_LIMIT = 2000


def arrows(project: Project) -> Iterator[str]:
    """Imports against the arrows. Imports for type checkers alone do not count."""
    level = {part: i for i, parts in enumerate(LEVELS) for part in parts}
    for path in project.modules:
        name = project.name(path)
        part = Path(name).parts[1].removesuffix(".py")
        if part == "__init__":
            continue
        if part not in level:
            yield f"{name}: {part!r} stands on no level of minillm/course/tool/package.py"
            continue
        for line, target in _imported_parts(path, name):
            if target != part and level.get(target, len(LEVELS)) >= level[part]:
                yield f"{name}: line {line}: {part} must not import minillm.{target}"


def core_lines(project: Project) -> tuple[int, int]:
    """The core's length: lines of code, and all lines."""
    package = project.root / "minillm"
    texts = [path.read_text(encoding="utf-8") for pattern in CORE for path in package.glob(pattern)]
    return sum(map(code_lines, texts)), sum(len(text.splitlines()) for text in texts)


def teaching_symbols(project: Project) -> dict[str, list[str]]:
    """The names in each module's `__all__`, by module; `__init__` files only re-export."""
    symbols = {}
    for path in project.modules:
        name = project.name(path)
        if path.name == "__init__.py" or name.startswith("minillm/course/"):
            continue
        if names := public_names(path.read_text(encoding="utf-8")):
            symbols[name] = names
    return symbols


def built_in(project: Project) -> dict[str, list[tuple[str, int]]]:
    """For each source such as `minillm/ops.py::Ops` the notebook and cell that build it."""
    places: dict[str, list[tuple[str, int]]] = {}
    for path in project.notebooks:
        try:
            cells = list(nb.definitions(nb.read(path)))
        except ValueError:
            continue  # the notebook's own check reports it
        for cell in cells:
            places.setdefault(cell.source, []).append((project.name(path), cell.index))
    return places


def teaching(project: Project) -> Iterator[str]:
    """Teaching symbols that no notebook builds, or two, and needless pending entries."""
    places = built_in(project)
    pending = project.pending
    symbols = teaching_symbols(project)
    for module, names in symbols.items():
        unbuilt = [name for name in names if f"{module}::{name}" not in places]
        if module not in pending:
            for name in unbuilt:
                yield f"{module}: no notebook builds {name}"
        elif not unbuilt:
            yield f"pyproject.toml: pending {module}: notebooks build all of it, take it out"
    for source, where in places.items():
        if len(where) > 1:
            cells = ", ".join(f"{path} cell {index + 1}" for path, index in where)
            yield f"{source.replace('::', ': ')} is built {len(where)} times: {cells}"
    for module, count in Counter(pending).items():
        if module not in symbols:
            yield f"pyproject.toml: pending {module}: no such module with an `__all__`"
        elif count > 1:
            yield f"pyproject.toml: pending {module}: listed {count} times"


def _imported_parts(path: Path, name: str) -> Iterator[tuple[int, str]]:
    """The parts of the package that a module imports, with line numbers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = Path(name).parts[: -node.level]
                base = ".".join([*package, *([base] if base else [])])
            # `from minillm import LLM` reaches as far up as `from minillm.llm import LLM`.
            modules = (
                [f"minillm.{_home(a.name)}" for a in node.names] if base == "minillm" else [base]
            )
        for module in modules:
            parts = module.split(".")
            if parts[0] == "minillm" and isinstance(node, ast.Import | ast.ImportFrom):
                target = parts[1] if len(parts) > 1 else "llm"
                if target:
                    yield node.lineno, target


def _home(name: str) -> str:
    """The part that a name imported from `minillm` itself belongs to; none for `__version__`."""
    known = {part for parts in LEVELS for part in parts}
    return "" if name.startswith("__") else name if name in known else "llm"
