"""What a layer's products multiply, against transformers' hooks."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from ringkv.engine import slab
from ringkv.models.config import load_config
from ringkv.models.decoder import Decoder
from ringkv.rotate.calibration import Calibration
from ringkv.weights.checkpoint import Checkpoint
from tests.engine import tiny

MODULES = {"qkv": "self_attn.q_proj", "output": "self_attn.o_proj", "gate_up": "mlp.up_proj", "down": "mlp.down_proj"}


@pytest.mark.parametrize(("kind", "changes"), [("Qwen2", {}), ("Mistral", {"sliding_window": 16})])
def test_hessians_and_hidden_states_are_those_of_transformers(
    kind: str, changes: dict[str, int], tmp_path: Path
) -> None:
    theirs = tiny.save(tmp_path, kind, **changes)
    windows = torch.randint(3, 199, (3, 40)).tolist()
    inputs: dict[str, list[Tensor]] = {name: [] for name in MODULES}
    second, after = theirs.model.layers[1], []
    for name, module in MODULES.items():
        second.get_submodule(module).register_forward_pre_hook(lambda _, x, name=name: inputs[name].append(x[0]))
    theirs.model.layers[2].register_forward_pre_hook(lambda _, x: after.append(x[0]))
    with torch.no_grad():
        theirs(torch.tensor(windows))

    config, checkpoint = load_config(tmp_path), Checkpoint(tmp_path)
    calibration = Calibration.of(
        Decoder(config, torch.float32, torch.device("cpu")), theirs.model.embed_tokens.weight.detach(), windows
    )
    layers = [
        {name: slab.read(checkpoint, weight.parts, torch.float32) for name, weight in config.layer_weights(at).items()}
        for at in range(2)
    ]
    calibration.advance(config.kinds[0], layers[0])
    found = calibration.hessians(config.kinds[1], layers[1])
    calibration.advance(config.kinds[1], layers[1])
    for name, (x,) in inputs.items():
        flat = x.flatten(0, 1)
        torch.testing.assert_close(found[name], flat.T @ flat, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(calibration.hidden, after[0], atol=1e-4, rtol=1e-4)
