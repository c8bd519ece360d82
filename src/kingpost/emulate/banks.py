"""Bank conflicts of shared memory: 32 banks of 4 bytes, each giving one word a pass, 128 bytes of lanes at a time.

CUDA C++ Programming Guide, "Shared Memory"; AMD's LDS has the same (CDNA3 ISA, "LDS"). Lanes of a wide access share
a pass in their order here: AMD's hardware pairs others, so its counts are of the pattern, not of cycles.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

BANKS, WORD = 32, 4


def conflicts(addresses: np.ndarray, size: int) -> int:
    """Passes beyond the one for every 128 bytes that lanes need to access `size` bytes each at these addresses."""
    if not len(addresses):
        return 0
    start = int(addresses.min()) // (BANKS * WORD) * (BANKS * WORD)
    return _conflicts((addresses - start).astype(np.int64).tobytes(), size)


@lru_cache(maxsize=1 << 16)
def _conflicts(pattern: bytes, size: int) -> int:
    addresses = np.frombuffer(pattern, np.int64)
    together = BANKS * WORD // max(size, WORD)  # lanes
    extra = 0
    for first in range(0, len(addresses), together):
        lanes = addresses[first : first + together]
        words = np.unique((lanes[:, None] + np.arange(0, size, min(size, WORD))) // WORD)
        extra += int(np.bincount(words % BANKS).max()) - 1
    return extra
