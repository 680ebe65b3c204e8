"""Builds the C++ kernels of minillm/kernels/cpu, where a compiler is at hand.

Everything else about the package is in pyproject.toml. The library is never required: where the
build fails, the package is installed without it and runs on plain PyTorch. It holds no code for
Python's own interface: minillm/kernels/cpu/__init__.py opens it with ctypes.
"""

import hashlib
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

FOLDER = Path("minillm/kernels/cpu")


def sources_hash(folder: Path) -> str:
    """Of all C++ files, as the loader works it out: it refuses a library of other sources."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".cpp", ".h", ".inl"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


class BuildKernels(build_ext):
    """With the compiler's own spelling of the options, and OpenMP where it is PyTorch's."""

    def build_extension(self, ext: Extension) -> None:
        """Compile and link; setuptools goes on without an extension that fails."""
        ext.define_macros.append(("MINILLM_SOURCES", f'"{sources_hash(FOLDER)}"'))
        if self.compiler.compiler_type == "msvc":
            ext.extra_compile_args = ["/std:c++17", "/O2", "/EHsc"]
        else:
            ext.extra_compile_args = ["-std=c++17", "-O3", "-fvisibility=hidden"]
            if sys.platform == "linux" and self.is_gcc():
                # GCC warns of its own vector functions, which leave lanes open on purpose.
                quiet = ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]
                ext.extra_compile_args += ["-fopenmp", *quiet]
                ext.extra_link_args = ["-fopenmp"]
        super().build_extension(ext)

    def is_gcc(self) -> bool:
        """GCC's OpenMP is the libgomp that PyTorch brings; clang would bring a second runtime."""
        with TemporaryDirectory() as folder:
            probe = Path(folder) / "probe.cpp"
            probe.write_text("#if defined(__clang__) || !defined(__GNUC__)\n#error\n#endif\n")
            try:
                self.compiler.compile([str(probe)], output_dir=folder, extra_preargs=["-fopenmp"])
            except CompileError:
                return False
        return True

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """None beside those that the sources mark; there is no PyInit function."""
        return list(ext.export_symbols)


setup(
    cmdclass={"build_ext": BuildKernels},
    ext_modules=[
        Extension(
            "minillm.kernels.cpu._library",
            sources=sorted(path.as_posix() for path in FOLDER.glob("*.cpp")),
            depends=[path.as_posix() for path in FOLDER.iterdir() if path.suffix in (".h", ".inl")],
            language="c++",
            optional=True,
        )
    ],
)
