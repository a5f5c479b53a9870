"""export: a trained decoder as a folder in Hugging Face's layout, which ringkv and transformers load."""

import json
from pathlib import Path

from safetensors.torch import save_file
from tokenizers import Tokenizer

from examples.train.model import Decoder
from examples.train.sizes import Sizes
from examples.train.variants import Variant, config
from examples.train.vocabulary import BEGIN, END


def export(decoder: Decoder, variant: Variant, sizes: Sizes, tokenizer: Tokenizer, folder: Path) -> None:
    """Write weights, config.json and tokenizer to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.detach().contiguous() for name, tensor in decoder.state_dict().items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    ids = (tokenizer.token_to_id(BEGIN), tokenizer.token_to_id(END))
    (folder / "config.json").write_text(json.dumps(config(variant, sizes, *ids), indent=2))
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN, "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
