"""What it costs one core to encode and decode vectors in fewer bits.

    python benchmarks/precision.py [--numbers 769174] [--repeats 25]

MB/s of float32 numbers, the best of many repeats by processor time, on one thread. The floor is a
copy in memory, which reads and writes each number once. ``link`` is the bandwidth in Mbit/s at
which encoding at one end and decoding at the other take as long as the bytes that they save: on
slower links fewer bits are faster.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from unisono.fabric import Precision, TensorVector


def best_s(work: Callable[[], object], repeats: int) -> float:
    """Seconds of processor time."""
    found = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--numbers", type=int, default=769_174, help="as in benchmarks/hosts.py")
    parser.add_argument("--repeats", type=int, default=25)
    options = parser.parse_args()
    torch.set_num_threads(1)
    vector = TensorVector(torch.randn(options.numbers))
    size = vector.nbytes
    copied = best_s(vector.copy, options.repeats)
    print(f"{options.numbers} numbers, {size / 1e6:.2f} MB in float32")
    print(f"{'':10} {'bytes':>8} {'encode MB/s':>12} {'decode MB/s':>12} {'link Mbit/s':>12}")
    print(f"{'copy':10} {size:8} {size / copied / 1e6:12.0f}")
    for precision in list(Precision)[1:]:
        coded = vector.encoded(precision)
        into = vector.like()
        encode_s = best_s(lambda p=precision: vector.encoded(p), options.repeats)  # type: ignore[misc]
        decode_s = best_s(
            lambda p=precision, c=coded, i=into: i.assign(c.decoded(p, vector)),  # type: ignore[misc]
            options.repeats,
        )
        link = 8 * (size - coded.nbytes) / (encode_s + decode_s) / 1e6
        print(
            f"{precision.value:10} {coded.nbytes:8} {size / encode_s / 1e6:12.0f} "
            f"{size / decode_s / 1e6:12.0f} {link:12.0f}"
        )


if __name__ == "__main__":
    main()
