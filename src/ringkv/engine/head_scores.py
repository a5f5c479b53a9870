"""head_scores: how much attention each key-value head pays to what is far back, for a profile of a model's heads.

Source: KVzip (arXiv 2505.23416): a token's score is the highest attention that it gets while the model repeats the
text. A head's score is their mean, so heads that retrieve (DuoAttention, arXiv 2410.10819) have high ones.
"""

from collections.abc import Sequence

import torch

from ringkv.base.config import HeadShares
from ringkv.base.engine import prefill
from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.base.selectors import KVzip
from ringkv.cache.compress import kvzip
from ringkv.engine.engine import LocalEngine


@torch.inference_mode()
def head_scores(engine: LocalEngine, tokens: Sequence[int]) -> HeadShares:
    """Return each layer's scores by head; () for layers with a sliding window, or with another layer's cache.

    Overwrites the first lane. The first tokens, to which all heads attend, are left out. Raises PromptTooLong if there
    is no room to repeat the text.
    """
    choice = KVChoice(select=KVzip())
    prefill(engine, Request("profile", tuple(tokens), SamplingParams(), choice))
    scores: dict[int, tuple[float, ...]] = {}
    for index, group in enumerate(engine.lanes.groups):
        if group.window is None:
            votes = kvzip.votes(engine.lanes.view(0, index, 0), kvzip.FIRST, len(tokens), KVzip())
            means = [of_layer.mean(-1).tolist() for of_layer in votes if of_layer is not None]
            scores |= dict(zip(group.layers, map(tuple, means), strict=True))
    return tuple(scores.get(layer, ()) for layer in range(engine.model.num_layers))
