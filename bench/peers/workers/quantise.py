"""quantise: convert a 16-bit GGUF to q8_0, q4_1 or q4_0 in llama.cpp's environment. Arguments: SOURCE TARGET KIND."""

import ctypes
import sys

import llama_cpp  # type: ignore[import-not-found]

FILE_TYPES = {"q4_0": 2, "q4_1": 3, "q8_0": 7}  # llama.cpp's file type ids


def main() -> int:
    source, target, kind = sys.argv[1:]
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[kind]
    return int(llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)))


if __name__ == "__main__":
    sys.exit(main())
