"""predict: a batch's loss, and which predictions are right.

X hidden elements, N predictions, C candidates.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from examples.train.batches import Batch
from examples.train.model import Decoder

NEGATIVES = 1024  # random negatives of sampled softmax


@dataclass(frozen=True)
class Result:
    """correct: bool like the targets; False if nothing is predicted."""

    loss: Tensor
    correct: Tensor


def predict(decoder: Decoder, batch: Batch, seed: str) -> Result:
    """Return the sampled-softmax loss of a batch: over its own tokens and random others.

    A softmax over the whole vocabulary costs more than the layers.
    """
    predicted = batch.targets >= 0
    targets = batch.targets[predicted]
    with torch.autocast("cpu", torch.bfloat16):
        hidden = decoder(batch.tokens)[predicted]  # [N, X]
        candidates = torch.cat((batch.tokens.flatten(), targets, _negatives(decoder, seed))).unique()
        logits = F.linear(hidden, decoder.embed(candidates)).float()  # [N, C]
    among = torch.searchsorted(candidates, targets)
    correct = torch.zeros_like(predicted)
    correct[predicted] = logits.argmax(-1) == among
    return Result(F.cross_entropy(logits, among), correct)


def recalled(batch: Batch, correct: Tensor) -> float:
    """The share of answers that are right."""
    return correct[batch.answers].float().mean().item()


def _negatives(decoder: Decoder, seed: str) -> Tensor:
    generator = torch.Generator().manual_seed(hash_of(seed))
    return torch.randint(decoder.vocabulary, (NEGATIVES,), generator=generator)


def hash_of(text: str) -> int:
    """A 32-bit hash that is the same in every process."""
    return int.from_bytes(text.encode(), "little") % 4_294_967_291
