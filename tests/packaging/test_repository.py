"""The repository's own promises: pins, extras, Binder, and what may not stand in a file."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.checkout import listed

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"

# What a module is imported as, where that is not the name it is installed under.
DISTRIBUTIONS = {"yaml": "pyyaml"}


# What runs only where somebody has installed it, beside the project or in a Python of its own.
OPTIONAL = {
    "minillm/bench/roofline.py": {"matplotlib"},
    "minillm/bench/timing.py": {"transformers"},
    "tools/llama_cpp_greedy.py": {"llama-cpp"},
    "tools/peers/llama_batch.py": {"llama-cpp"},
    "tools/peers/llama_first_token.py": {"llama-cpp"},
    "tools/peers/llama_worker.py": {"llama-cpp"},
}


def pins() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in found}


def tracked_files() -> list[Path]:
    return [ROOT / name for name in listed()]


def direct_lines() -> list[str]:
    return PROJECT["dependencies"] + [line for extra in EXTRAS.values() for line in extra]


def direct_requirements() -> list[Requirement]:
    return [Requirement(line) for line in direct_lines()]


# Dependencies -----------------------------------------------------------------------------------


def test_every_pin_is_exact() -> None:
    for pin in pins().values():
        assert re.fullmatch(r"==[0-9][0-9a-z.]*", str(pin.specifier)), pin
    assert str(pins()["torch"].specifier) == "==2.13.0"


def test_pins_lie_within_the_ranges_of_pyproject() -> None:
    pinned = pins()
    for requirement in direct_requirements():
        pin = pinned[canonicalize_name(requirement.name)]
        version = str(pin.specifier).removeprefix("==")
        assert requirement.specifier.contains(version), f"{requirement} against {pin}"


def test_pins_admit_the_oldest_python() -> None:
    """A pin may ask for a later patch release than Debian's 3.11.2 (soupsieve 4.1.3 did)."""
    oldest = PROJECT["requires-python"].removeprefix(">=") + ".0"
    for name, pin in pins().items():
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # belongs to another system
        if pin.specifier.contains(found.version):
            asked = SpecifierSet(",".join(found.metadata.get_all("Requires-Python") or []))
            assert asked.contains(oldest), f"{pin} needs Python {asked}"


def needed(names: list[str], extras: set[str]) -> Iterator[str]:
    """The names of everything that these requirements bring in, by the installed metadata."""
    seen: set[tuple[str, str]] = set()
    todo = [(name, extra) for name in names for extra in {"", *extras}]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        yield name
        for line in metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                child = canonicalize_name(requirement.name)
                todo += [(child, inner) for inner in {"", *requirement.extras}]


def test_everything_that_make_installs_is_pinned() -> None:
    pinned = pins()
    extras = {"course", "test"}
    if importlib.util.find_spec("selenium"):
        extras.add("browser")  # comes with `make test-browser`
    installed = {canonicalize_name(name) for name in needed(["minillm-course"], extras)}
    missing = installed - set(pinned) - {"minillm-course"}
    # A CUDA build of torch brings its own, exactly pinned.
    missing = {name for name in missing if not name.startswith(("nvidia-", "cuda-"))}
    assert not missing, f"not in constraints.txt: {sorted(missing)}"
    assert {"pip", "setuptools"} <= set(pinned)


def imported_packages(folder: str) -> dict[str, str]:
    """The third-party packages imported under a folder, each with one file that imports it."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                found.setdefault(name.partition(".")[0], str(path.relative_to(ROOT)))
    own = {"minillm", "tests", "tools", *sys.stdlib_module_names}
    return {name: path for name, path in found.items() if name not in own}


def declared(lines: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in lines}


def distribution(module: str) -> str:
    return canonicalize_name(DISTRIBUTIONS.get(module, module))


def test_the_package_imports_only_what_it_declares() -> None:
    core = declared(PROJECT["dependencies"])
    course = core | declared(EXTRAS["course"])
    for module, path in imported_packages("minillm").items():
        allowed = course if path.startswith("minillm/course/") else core
        if path.startswith("minillm/kernels/"):
            allowed = core | declared(EXTRAS["gpu"])
        allowed = allowed | OPTIONAL.get(path, set())
        assert distribution(module) in allowed, f"{path} imports {module}, which is not declared"


def test_every_declared_dependency_is_used() -> None:
    used = {distribution(module) for module in imported_packages("minillm")}
    assert declared(PROJECT["dependencies"]) - used == set()


def test_tests_and_tools_import_only_what_the_extras_bring() -> None:
    allowed = declared(direct_lines())
    for folder in ("tests", "tools"):
        for module, path in imported_packages(folder).items():
            known = allowed | OPTIONAL.get(path, set())
            assert distribution(module) in known, f"{path} imports {module}"


# Binder -----------------------------------------------------------------------------------------


def test_binder_installs_the_same_environment_with_a_cpu_torch() -> None:
    """N03: a CUDA build makes an image of 8 to 9 GB. The pin names the CPU build."""
    text = (ROOT / "binder" / "requirements.txt").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pin = str(pins()["torch"].specifier)
    assert lines == [
        f"--extra-index-url {CPU_INDEX}",
        "-c ../constraints.txt",
        f"torch{pin}+cpu",
        "-e .[course]",
    ]
    assert Version(f"{pin.removeprefix('==')}+cpu") in pins()["torch"].specifier
    post_build = ROOT / "binder" / "postBuild"
    assert os.access(post_build, os.X_OK)
    assert "torch.version.cuda is None" in post_build.read_text()
    assert "minillm pull smollm2" in post_build.read_text()


def test_binder_python_is_one_that_the_pins_are_for() -> None:
    runtime = (ROOT / "binder" / "runtime.txt").read_text().strip()
    version = runtime.removeprefix("python-")
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]


# Continuous integration and hooks ---------------------------------------------------------------


def test_ci_runs_what_the_readme_says() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    assert "make test" in script.read_text()
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    steps = workflow["jobs"]["test"]["steps"]
    assert any(step.get("run") == "bash .ci/run" for step in steps)


def test_pre_commit_downloads_nothing() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert all(repo["repo"] == "local" for repo in hooks["repos"])
    assert all(hook["language"] == "system" for repo in hooks["repos"] for hook in repo["hooks"])


# Contents ---------------------------------------------------------------------------------------


def test_no_package_registry_is_named() -> None:
    """PyTorch's CPU wheel index is the one index address that may stand in the repository."""
    hosts = ["pypi" + ".org", "pythonhosted" + ".org", "npmjs" + ".org", "debian" + ".org"]
    for path in tracked_files():
        text = path.read_bytes().decode("utf-8", "replace")
        for host in hosts:
            assert host not in text, f"{path.relative_to(ROOT)} names {host}"
        for address in re.findall(r"https?://[^\s\"'<>)`]*(?:/simple|/whl)\b[^\s\"'<>)`]*", text):
            allowed = (CPU_INDEX, "http://127.0.0.1:")  # the latter: a server of the tests
            assert address.startswith(allowed), f"{path.relative_to(ROOT)}: {address}"


def test_no_large_files() -> None:
    for path in tracked_files():
        size = path.stat().st_size
        assert size <= 2**20, f"{path.relative_to(ROOT)} has {size:,} bytes"


def test_no_weights_or_build_products_are_tracked() -> None:
    unwanted = {".safetensors", ".gguf", ".bin", ".pt", ".so", ".pyc", ".whl"}
    for path in tracked_files():
        assert path.suffix not in unwanted, path
        assert ".ipynb_checkpoints" not in path.parts


def test_licence() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert PROJECT["license"] == "Apache-2.0"


def test_changelog_and_data_have_their_entries() -> None:
    assert PROJECT["version"] in (ROOT / "CHANGELOG.md").read_text()
    listed = (ROOT / "data" / "README.md").read_text()
    for path in (ROOT / "data").rglob("*"):
        if path.is_file() and path.name != "README.md":
            assert path.name in listed, f"data/README.md says nothing of {path.name}"


def test_the_set_up_page_lists_every_command() -> None:
    text = (ROOT / "docs" / "setup.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE):
        assert f"| `make {target}" in text, f"docs/setup.md says nothing of make {target}"
