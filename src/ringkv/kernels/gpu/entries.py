"""Attention to the entries of heads in any encoding of whole entries, by any reading."""

from ringkv.kernels.gpu import encoded_attend, plain_attend
from ringkv.kernels.gpu.forms import FORMS
from ringkv.kernels.gpu.readings import Reading
from ringkv.kernels.gpu.splits import Attended
from ringkv.kernels.gpu.step import Step
from ringkv.kernels.gpu.tiling import Tiling


def usual_tiling(step: Step, capacity: int) -> Tiling:
    """Return the default tiling for heads of so many entries."""
    if is_encoded(step):
        return encoded_attend.usual_tiling(step, capacity)
    return plain_attend.usual_tiling(step.q, capacity)


def write(step: Step, reading: Reading) -> None:
    """Write the new token, if there is one and `attend` does not write it."""
    if is_encoded(step) and step.k is not None:
        encoded_attend.write(step, reading)


def attend(step: Step, reading: Reading, cut: Tiling) -> Attended:
    """Attend to the entries of the reading."""
    if is_encoded(step):
        return encoded_attend.attend(step, reading, cut)
    return plain_attend.attend(step, reading, cut)


def is_encoded(step: Step) -> bool:
    return step.slots.encoding in FORMS
