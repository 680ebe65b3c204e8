"""`python -m minillm.course sync | check | build | run | clean`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from minillm.course.tool.project import Project


def main(argv: list[str] | None = None) -> int:
    """Runs one command; 0 when all is well, 1 for problems, 2 for wrong usage."""
    arguments = _parser().parse_args(argv)
    try:
        project = Project(arguments.root.resolve()) if arguments.root else Project.of_package()
        paths = [_notebook(path) for path in getattr(arguments, "notebooks", [])]
        return _run_command(arguments, project, paths or project.notebooks)
    except (ValueError, LookupError, OSError) as error:
        print(f"minillm.course: error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m minillm.course", description="Keeps the notebooks and the package in step."
    )
    parser.add_argument("--root", type=Path, help="the checkout; by default the running package's")
    commands = parser.add_subparsers(dest="command", required=True)
    several = {
        "sync": "write the package's text into the definition cells",
        "check": "report everything that is out of step or out of bounds",
        "run": "execute the notebooks that changed and store their outputs",
        "clean": "write notebooks in their normal form, outputs untouched",
    }
    for name, purpose in several.items():
        command = commands.add_parser(name, help=purpose, description=purpose)
        command.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK")
        if name == "run":
            command.add_argument(
                "--all", action="store_true", help="also those that did not change"
            )
    purpose = "write a notebook's edited definition cells into the package"
    build = commands.add_parser("build", help=purpose, description=purpose)
    build.add_argument("notebook", nargs="?", type=Path, metavar="NOTEBOOK")
    build.add_argument("--undo", action="store_true", help="take the last build back")
    return parser


def _notebook(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"no notebook {str(path)!r}")
    return path.resolve()


def _run_command(arguments: argparse.Namespace, project: Project, notebooks: list[Path]) -> int:
    if arguments.command == "sync":
        from minillm.course.tool.launch import path_page
        from minillm.course.tool.sync import sync

        if wrong := path_page(project, write=True):
            print(f"{wrong}: updated")
        for path in notebooks:
            for line in sync(project, path):
                print(line)
        return 0
    if arguments.command == "check":
        from minillm.course.tool.check import check

        report = check(project, notebooks)
        print("\n".join([*report.statistics, *report.problems]))
        return 1 if report.problems else 0
    if arguments.command == "build":
        return _build(arguments, project)
    from minillm.course.tool import notebook as nb

    if arguments.command == "clean":
        for path in notebooks:
            if nb.write(path, nb.clean(nb.read(path))):
                print(f"{project.name(path)}: cleaned")
        return 0
    from minillm.course.tool.run import needs_run, run

    failed = 0
    for path in notebooks:
        if not (arguments.all or arguments.notebooks or needs_run(nb.read(path))):
            print(f"{project.name(path)}: unchanged")
            continue
        try:
            print(f"{project.name(path)}: {run(path)}", flush=True)
        except ValueError as error:
            failed += 1
            print(f"minillm.course: error: {error}", file=sys.stderr)
    return 1 if failed else 0


def _build(arguments: argparse.Namespace, project: Project) -> int:
    from minillm.course.tool.build import build, undo

    if arguments.undo:
        lines = undo(project)
    elif arguments.notebook is None:
        raise ValueError("build needs a notebook, such as notebooks/01_bpe.ipynb, or --undo")
    else:
        lines = build(project, _notebook(arguments.notebook))
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
