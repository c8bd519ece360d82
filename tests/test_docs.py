"""The Python of README.md and docs/: every block runs, in order, and prints what its page says.

A page is one session. A ```python block is executed; a ```text block right after it is what it prints, or how it ends
("Error: message"). Whitespace counts as one space there, and `...` stands for anything. Blocks are compiled under the
page's name and line numbers, so the source lines in messages are the page's own; when an edit has moved them,
`python tests/test_docs.py` puts the new numbers into the pages.
"""

from __future__ import annotations

import doctest
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kingpost.assemble import AssemblerNotFound

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "```python\n" in path.read_text("utf-8")
}


@dataclass(frozen=True)
class Block:
    """A block of code, the page's line that it starts on, and the output that follows it (None without one)."""

    code: str
    line: int
    output: str | None

    def run(self, page: str, names: dict[str, Any]) -> str:
        """What it prints; an error ends that, where the page shows an output."""
        printed = io.StringIO()
        try:
            with redirect_stdout(printed):
                exec(compile("\n" * (self.line - 1) + self.code, page, "exec"), names)
        except Exception as error:
            if self.output is None or isinstance(error, AssemblerNotFound):
                raise
            print(f"{type(error).__name__}: {error}", file=printed)
        return printed.getvalue()


def blocks(text: str) -> Iterator[Block]:
    fences = list(FENCE.finditer(text))
    for fence, after in zip(fences, [*fences[1:], None]):
        if fence[1] == "python":
            shown = after is not None and after[1] == "text" and not text[fence.end() : after.start()].strip()
            yield Block(fence[2], text.count("\n", 0, fence.start(2)) + 1, after[2] if shown else None)


@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
def test_pages_run_as_written(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINGPOST_CACHE", str(tmp_path))
    names: dict[str, Any] = {"__name__": "page"}
    checker, options = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for block in blocks(path.read_text("utf-8")):
        try:
            got = block.run(path.name, names)
        except AssemblerNotFound as error:
            pytest.skip(f"from line {block.line} on: {error}")
        wanted = block.output or ""
        if not checker.check_output(wanted, got, options):
            difference = checker.output_difference(doctest.Example(block.code, wanted), got, options)
            pytest.fail(f"{path.name}, line {block.line}:\n{difference}", pytrace=False)


def renumbered(page: str, output: str, got: str) -> str:
    """The output with the page's line numbers as they really are."""
    number = re.compile(re.escape(page) + r":\d+")
    found = iter(number.findall(got))
    return number.sub(lambda old: next(found, old[0]), output)


if __name__ == "__main__":
    for path in PAGES.values():
        text, names = path.read_text("utf-8"), {"__name__": "page"}
        for block in blocks(text):
            got = block.run(path.name, names)
            if block.output:
                text = text.replace(block.output, renumbered(path.name, block.output, got), 1)
        path.write_text(text, "utf-8")
