"""`import kingpost` stays light: the standard library, numpy and ml_dtypes."""

import subprocess
import sys

FOREIGN = """
import sys
{statement}
top = {{name.partition(".")[0] for name in sys.modules}}
print(*sorted(top - set(sys.stdlib_module_names) - set(sys.builtin_module_names)))
"""


def foreign_modules(statement: str) -> set[str]:
    """The top-level modules from outside the standard library that a fresh interpreter holds after `statement`."""
    answer = subprocess.run(
        [sys.executable, "-c", FOREIGN.format(statement=statement)], capture_output=True, text=True, check=True
    )
    return set(answer.stdout.split())


def test_import_loads_only_numpy_and_ml_dtypes() -> None:
    assert foreign_modules("import kingpost") - foreign_modules("pass") <= {"kingpost", "numpy", "ml_dtypes"}


def test_doctor_imports_none_of_what_it_reports_on() -> None:
    loaded = foreign_modules("import kingpost.doctor; kingpost.doctor.examine()")
    assert not loaded & {"torch", "triton", "jax", "safetensors", "tokenizers", "matplotlib"}
