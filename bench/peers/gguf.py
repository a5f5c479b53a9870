"""gguf: a GGUF rewritten with 16-bit matrices, so that llama.cpp runs the same weights as the other engines.

Metadata and tokenizer are copied. Vectors (norms, biases) stay in 32 bits, as in llama.cpp's own converter.
"""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

TYPES = {
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
}
NOT_COPIED = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture", "general.file_type")


def rewrite(source: Path, target: Path, kind: str) -> None:
    """Write `target` from `source`, one tensor in memory at a time; `kind` is one of `TYPES`."""
    reader = GGUFReader(source)
    matrix, file_type = TYPES[kind]
    writer = GGUFWriter(target, _text(reader, "general.architecture"))
    for field in reader.fields.values():
        if field.name not in NOT_COPIED:
            inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
    writer.add_file_type(file_type)
    kinds = [matrix if len(tensor.shape) > 1 else GGMLQuantizationType.F32 for tensor in reader.tensors]
    for tensor, to in zip(reader.tensors, kinds, strict=True):
        shape = [int(size) for size in reversed(tensor.shape)]
        width = 4 if to == GGMLQuantizationType.F32 else 2
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), int(np.prod(shape)) * width, raw_dtype=to)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor, to in zip(reader.tensors, kinds, strict=True):
        writer.write_tensor_data(quantize(dequantize(tensor.data, tensor.tensor_type), to))
    writer.close()


def _text(reader: Any, key: str) -> str:
    field = reader.get_field(key)
    assert field is not None
    return str(field.contents())
