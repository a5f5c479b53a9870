"""Files to tensors: checkpoints, and the layouts of quantised weights.

Others import `checkpoint`, `files`, `gguf.config`, `gguf.convert`, `gguf.file`, `gguf.groups`, `gguf.header`,
`gguf.split`, `group_layout`, `open_files`, `read_ahead`, `safetensors_writer` and `shapes`.
"""
