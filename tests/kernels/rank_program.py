"""One rank of `test_collective`: python rank_program.py LIBRARY DESCRIPTOR RANK COUNT DEATH"""

import os
import signal
import sys

import torch

from ringkv.base.ranks import Rank
from ringkv.kernels.collective import (
    all_gather,
    all_max,
    all_reduce,
    columns_to_rows,
    connect_memory,
    report_end,
    rows_to_columns,
)

SHAPES = ((1, 5), (8, 2048), (3, 100_003))
EXCHANGED = ((1, 5), (3, 1024), (5, 40_000))  # of the last, few rows fit in an area at once


def main(library: str, descriptor: int, index: int, count: int, death: str) -> None:
    torch.set_num_threads(1)
    torch.ops.load_library(library)
    connect_memory(descriptor, Rank(index, count), 2.0 if death == "stops" else 60.0)
    generator = torch.Generator().manual_seed(1)
    for shape in SHAPES:
        given = [torch.randn(shape, generator=generator) for _ in range(count)]
        want = given[0].clone()
        for other in given[1:]:
            want += other
        assert torch.equal(all_reduce(given[index], "memory"), want)
        assert torch.equal(all_max(given[index], "memory"), torch.stack(given).amax(0))
        widths = [7 + rank for rank in range(count)]
        parts = [torch.randn(shape[0], width, generator=generator) for width in widths]
        assert torch.equal(all_gather(parts[index], widths, "memory"), torch.cat(parts, 1))
    for rows, width in EXCHANGED:
        widths = [width + rank for rank in range(count)]
        whole = torch.randn(rows * count, sum(widths), generator=generator)
        columns, own = whole.split(widths, 1)[index], whole[index::count]
        assert torch.equal(columns_to_rows(columns, widths, "memory"), own)
        assert torch.equal(rows_to_columns(own, widths, widths[index], "memory"), columns)
    if death and index == count - 1:
        if death == "ends":
            report_end(index)
        os.kill(os.getpid(), signal.SIGKILL)
    if death:
        try:
            all_reduce(torch.zeros(3), "memory")
        except RuntimeError as error:
            print(str(error).partition("\n")[0])


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]), *sys.argv[5:])
