"""The Triton backend for CUDA."""

from vllm.v1.attention.backends.triton_attn import (
    TritonAttentionBackend,
    TritonAttentionImpl,
    TritonAttentionMetadataBuilder,
)

from ringkv_vllm.backends.mixins import SnapStreamBackend, SnapStreamImpl
from ringkv_vllm.builder import SnapStreamBuilder


class SnapStreamTritonBuilder(SnapStreamBuilder, TritonAttentionMetadataBuilder):
    """The metadata builder."""


class SnapStreamTritonImpl(SnapStreamImpl, TritonAttentionImpl):
    """The implementation."""


class SnapStreamTritonBackend(SnapStreamBackend, TritonAttentionBackend):
    impl, builder = SnapStreamTritonImpl, SnapStreamTritonBuilder
