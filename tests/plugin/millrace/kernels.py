"""Programs: the block-scaled product, and the cast. Rows of 128 columns are fetched one block ahead of their use."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.isa import DEPTH, TILE, Copy, Drain, DrainQuantised, Instruction, MatrixStep, ScaleAdd, Wait, Window

BLOCK = 128  # columns that share a scale


def product(m: int, n: int, k: int) -> Iterator[Instruction]:
    """d [m, n] = a [m, k] b [n, k]^T with scale_a [m, ceil(k/128)] and scale_b [ceil(n/128), ceil(k/128)]."""
    blocks = -(-k // BLOCK)
    for row in range(0, m, TILE):
        for column in range(0, n, TILE):
            yield from fetch(row, column, 0)
            for block in range(blocks):
                ahead = block + 1 < blocks
                if ahead:
                    yield from fetch(row, column, block + 1)
                for queue in (0, 1):
                    yield Wait(queue, outstanding=2 if ahead else 0)  # the two copies of the block ahead
                half = block % 2
                for first in range(0, BLOCK, DEPTH):
                    yield MatrixStep(f"a{half}", f"b{half}", first)
                yield ScaleAdd(f"scale_a{half}", f"scale_b{half}")  # in ascending K: the promise of one answer
            yield Drain(Window("d", row, column, TILE, TILE))


def fetch(row: int, column: int, block: int) -> Iterator[Instruction]:
    """One block of K of both operands with their scales, two copies on each queue."""
    half, k = block % 2, block * BLOCK
    yield Copy(0, Window("a", row, k, TILE, BLOCK), f"a{half}")
    yield Copy(0, Window("scale_a", row, block, TILE, 1), f"scale_a{half}")
    yield Copy(1, Window("b", column, k, TILE, BLOCK), f"b{half}")
    yield Copy(1, Window("scale_b", column // BLOCK, block, 1, 1), f"scale_b{half}")


def cast(m: int, k: int, eps: float, power_of_two: bool) -> Iterator[Instruction]:
    """x [m, k] to data [m, k] and scales [m, ceil(k/128)]."""
    for row in range(0, m, TILE):
        for block in range(-(-k // BLOCK)):
            here = (row, block * BLOCK, TILE, BLOCK)
            yield Copy(0, Window("x", *here), "x")
            yield Wait(0, outstanding=0)
            yield DrainQuantised("x", Window("data", *here), Window("scales", row, block, TILE, 1), eps, power_of_two)
