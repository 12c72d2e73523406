"""The checksum of an event as a SQL database keeps it: what the disk or the memory changed since is noticed.

A CRC-32 of the row's values as they were written (numbers as 64 bits, little-endian, NULL as the one NaN; texts in
UTF-8) and of a report's further metrics. It finds every change of up to 32 neighbouring bits, and all others but one
in 4 billion; it is no proof against somebody who writes logs on purpose: what an event says is checked besides. A
row's position is not in it: positions have no gaps. Rows of older versions have none.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any
from zlib import crc32

_NAN = math.nan
_REPORT = struct.Struct("<dqqdddqdddd").pack  # raises struct.error for values of other types
_METRIC = struct.Struct("<d").pack


def of_report(
    at: float, trial: int, attempt: int, epoch: float, value: float | None, seconds: float, seen: int,
    validation: float | None, cost: float | None, deciding: float, until: float | None,
    texts: tuple[str, str, str], metrics: Mapping[str, float | None],
) -> int:  # fmt: skip
    """Of a report's columns. texts: action, reason, body; metrics: as stored. Raises struct.error, TypeError."""
    total = crc32(
        _REPORT(
            at,
            trial,
            attempt,
            epoch,
            _NAN if value is None else value + 0.0,
            seconds + 0.0,
            seen,
            _NAN if validation is None else validation + 0.0,
            _NAN if cost is None else cost + 0.0,
            deciding,
            _NAN if until is None else until,
        )
    )  # fmt: skip  (SQLite keeps -0.0 as 0.0, and so does + 0.0)
    total = crc32("\0".join(texts).encode(), total)
    for name in sorted(metrics) if metrics else ():
        number: Any = metrics[name]
        total = crc32(_METRIC(_NAN if number is None or number != number else number + 0.0), total)
        total = crc32(name.encode(), total)
    return total


def of_text(kind: str, body: str) -> int:
    """Of an event of another kind."""
    return crc32(f"{kind}\0{body}".encode())
