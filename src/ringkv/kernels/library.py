"""The `ringkv` operator library: schemas here, one implementation a device beside its reference.

Attention is an operator, not traced code, because it takes a *run-time length*: the graph around it stays static
while it reads only live entries. The dispatcher is the registry: a CPU call takes the C++ kernel when one was built
(`native.load`), else the torch reference.
"""

import torch

LIBRARY = torch.library.Library("ringkv", "DEF")
LIBRARY.define(
    "decode_attend(Tensor q, Tensor k, Tensor v, Tensor(a!) keys, Tensor(b!) values, Tensor entry, Tensor live)"
    " -> Tensor"
)
LIBRARY.define(
    "prefill_attend(Tensor q, Tensor k, Tensor v, Tensor(a!) keys, Tensor(b!) values, Tensor(c!) window, Tensor span)"
    " -> Tensor"
)
LIBRARY.define("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
