#!/usr/bin/env python3
"""Print how many tokens the longest sentence of binarised sets has (``longest.py FILE.idx...``)."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

MAGIC = b"MMIDIDX\x00\x00"  # of fairseq's MMapIndexedDataset, whose sizes follow a head of 26 bytes
HEAD = len(MAGIC) + 8 + 1 + 8


def longest(path: Path) -> int:
    """Tokens of the longest sentence, its end counted.

    Raises:
        ValueError: the file is no index of fairseq's default kind.
    """
    head = path.open("rb").read(HEAD)
    if len(head) < HEAD or not head.startswith(MAGIC):
        raise ValueError(f"{path} must be an index of fairseq-preprocess, but is not")
    count = int.from_bytes(head[-8:], "little")
    return int(np.fromfile(path, "<i4", count, offset=HEAD).max(initial=0))


if __name__ == "__main__":
    try:
        print(max(longest(Path(name)) for name in sys.argv[1:]))
    except ValueError as error:
        sys.exit(str(error))
