"""load: what each of two ranks has of the weights, and the most memory of its own while it loads them."""

from collections.abc import Sequence
from multiprocessing.connection import Connection

from bench.ranks.child import THREADS, Child
from bench.results import Figure, table


def load(model: str, rank: int) -> Figure:
    """Load one of two ranks' weights, in a process of its own."""
    child = Child(_loaded, model, rank)
    part, most = map(int, child.receive())
    child.close()
    return {
        "part": "load",
        "model": model,
        "rank": rank,
        "part_bytes": part,
        "loading_bytes": most,
        "loading_ratio": most / part,
    }


def _loaded(connection: Connection, model: str, index: int) -> None:
    """Send the bytes of a rank's weights, and the most bytes that it gained while it loaded them."""
    import torch

    from bench.kernels import load_kernels
    from bench.resident import Peak
    from ringkv.base.progress import silent
    from ringkv.base.ranks import Rank
    from ringkv.engine.load import load as load_weights
    from ringkv.models.config import load_config
    from ringkv.residency.locate import locate

    folder, rank = locate(model), Rank(index, THREADS)
    load_kernels()
    config = load_config(folder).of_rank(rank, "memory")
    connection.send([])
    with Peak() as peak:
        weights = load_weights(folder, config, torch.bfloat16, torch.device("cpu"), silent, rank=rank)
    connection.send([weights.bytes, peak.bytes])


def load_table(figures: Sequence[Figure]) -> str:
    rows = [
        (
            one["model"],
            f"{one['rank']}",
            f"{one['part_bytes']:,}",
            f"{one['loading_bytes']:,}",
            f"{one['loading_ratio']:.3f}",
        )
        for one in figures
    ]
    return table(("model", "rank of 2", "bytes of its weights", "most while loading", "ratio"), rows)
