"""Tiling of `experts` for a GPU. It is a formula of fixed shapes: nothing is autotuned at start."""

from dataclasses import dataclass

from ringkv.kernels.gpu.tiling import RESERVED_BYTES, WARPS, Chip

MIN_ROWS, MAX_ROWS = 16, 128  # tensor cores need at least 16 rows and columns
COLUMNS = (256, 128, 64, 32)  # outputs of one program, of all matrices that it multiplies with
FEW, LINE_BYTES = 32, 256  # up to FEW rows a tile, weights are loaded in lines of so many bytes; else in half
WAVES = 2  # programs per processor, if there are enough columns
STAGES = 4  # at most, for tiles of MAX_ROWS; smaller tiles need one less


@dataclass(frozen=True)
class ExpertTiling:
    """How one program multiplies a tile of rows with columns of one or two matrices of an expert."""

    rows: int
    columns: int
    depth: int  # elements of a row that are loaded at a time
    warps: int
    stages: int  # of the pipeline that loads them

    def shared_bytes(self, matrices: int, itemsize: int) -> int:
        """Return a bound on a program's shared memory: the loads in flight, and as much as one for the results."""
        return self.stages * (self.rows + matrices * self.columns) * self.depth * itemsize + RESERVED_BYTES


def tile_rows(pairs: int, experts: int, itemsize: int) -> int:
    """Return the rows of a tile: half more than an expert has on average, so that most experts need one tile."""
    if itemsize > 2:
        return MIN_ROWS
    usual = -(-3 * pairs // (2 * experts))
    return min(MAX_ROWS, max(MIN_ROWS, 1 << (usual - 1).bit_length()))


def most_tiles(pairs: int, experts: int, rows: int) -> int:
    """Return the most tiles that so many pairs of a row and an expert can need, however they are distributed."""
    served = min(pairs, experts)  # with one row each; every `rows` more need one more tile
    return served + (pairs - served) // rows


def expert_tiling(rows: int, tiles: int, width: int, matrices: int, itemsize: int, on: Chip) -> ExpertTiling:
    """Return the tiling of a product with `width` outputs; its tiles of rows are about `tiles`."""
    if itemsize > 2:
        return ExpertTiling(rows, COLUMNS[-1], LINE_BYTES // 2 // itemsize, WARPS[itemsize], STAGES - 1)
    most = 2 * rows if rows == MAX_ROWS and on.major > 8 else 128  # more columns would spill on 8.0
    columns = [total // matrices for total in COLUMNS if COLUMNS[-1] * matrices <= total <= most]
    enough = (n for n in columns if tiles * (width // n) >= WAVES * on.processors)
    line = LINE_BYTES if rows <= FEW else LINE_BYTES // 2
    warps, stages = (8, STAGES) if rows == MAX_ROWS else (4, STAGES - 1)
    return ExpertTiling(rows, next(enough, columns[-1]), line // itemsize, warps, stages)
