"""Time that `import haltune` adds to importing numpy, scipy.linalg and scipy.optimize. Goal: under 60 ms.

Each sample is a fresh interpreter that times both imports; the first, which may read a cold disk, is dropped.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

SAMPLE = """
import sys, time
start = time.perf_counter()
import numpy, scipy.linalg, scipy.optimize
base, cpu, modules = time.perf_counter(), time.process_time(), len(sys.modules)
import haltune
print(base - start, time.perf_counter() - base, time.process_time() - cpu, len(sys.modules) - modules)
"""


def sample() -> tuple[float, float, float, int]:
    """Seconds of the base imports; seconds, processor seconds and modules that haltune adds."""
    # -P: the working folder is not on the path, so the installed package is the one that is measured
    answer = subprocess.run([sys.executable, "-P", "-c", SAMPLE], capture_output=True, text=True, check=True)
    base, added, cpu, modules = answer.stdout.split()
    return float(base), float(added), float(cpu), int(modules)


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=15, help="fresh interpreters to time (default 15)")
    samples = parser.parse_args().samples
    sample()
    base, added, cpu, modules = zip(*(sample() for _ in range(samples)), strict=True)
    print(f"numpy, scipy.linalg, scipy.optimize   {1e3 * statistics.median(base):7.1f} ms")
    print(f"import haltune adds                   {1e3 * statistics.median(added):7.1f} ms   (target: under 60)")
    print(f"  processor time, when others compete {1e3 * statistics.median(cpu):7.1f} ms")
    print(f"  slowest of {samples:<3}                      {1e3 * max(added):7.1f} ms; {modules[0]} modules")


if __name__ == "__main__":
    main()
