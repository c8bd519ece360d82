"""Which lane and register hold which element of a matrix instruction's operands (64 lanes).

Sources: AMD's matrix instruction calculator (CDNA3), Triton's layouts (CDNA4); `tests/targets/amd/test_layouts.py`
compares with the latter. Operands are [rows, K]: A's rows are D's rows, B's are D's columns.
"""

from __future__ import annotations

import numpy as np

LANES = 64


def lane_bytes(registers: np.ndarray) -> np.ndarray:
    """uint32 registers [n, 64] as each lane's bytes [64, 4 n], the lowest first."""
    return np.ascontiguousarray(registers.T).view(np.uint8)


def contiguous_operand(elements: np.ndarray, rows: int) -> np.ndarray:
    """[64, n] elements to [rows, K]: lane = row + rows * (k / n), element k % n."""
    groups, each = LANES // rows, elements.shape[1]
    return elements.reshape(groups, rows, each).transpose(1, 0, 2).reshape(rows, groups * each)


def halved_operand(elements: np.ndarray, rows: int) -> np.ndarray:
    """[64, 32] bytes to [rows, K] for the f8f6f4 instructions' 8-bit formats: the first 16 bytes of a lane lie in the
    first half of K, the others in the second: k = K/2 * (e / 16) + 16 * (lane / rows) + e % 16, row = lane % rows."""
    groups = LANES // rows
    return elements.reshape(groups, rows, 2, 16).transpose(1, 2, 0, 3).reshape(rows, 32 * groups)


def block_scales(codes: np.ndarray, rows: int) -> np.ndarray:
    """One byte a lane [64] to [rows, K / 32]: row = lane % rows, 32-block of K = lane / rows."""
    return codes.reshape(LANES // rows, rows).T


def result_registers(d: np.ndarray) -> np.ndarray:
    """D [side, side] to its registers [side * side / 64, 64]: lane = column + side * (row / 4 % groups),
    register = 4 * (row / (4 groups)) + row % 4, where groups = 64 / side."""
    side = d.shape[0]
    groups = LANES // side
    return d.reshape(side // (4 * groups), groups, 4, side).transpose(0, 2, 1, 3).reshape(-1, LANES)


def result_matrix(registers: np.ndarray) -> np.ndarray:
    """The inverse of `result_registers`."""
    side = int(np.sqrt(registers.size))
    groups = LANES // side
    return registers.reshape(-1, 4, groups, side).transpose(0, 2, 1, 3).reshape(side, side)


def result_places(side: int) -> tuple[tuple[int, int], ...]:
    """(row, column) of each register of D in lane 0; lane l adds 4 * (l / side) to the row, l % side to the column."""
    groups = LANES // side
    return tuple((4 * groups * (register // 4) + register % 4, 0) for register in range(side * side // LANES))
