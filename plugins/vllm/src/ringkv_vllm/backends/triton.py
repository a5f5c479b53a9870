"""The Triton backend for CUDA."""

from vllm.v1.attention.backends.triton_attn import (
    TritonAttentionBackend,
    TritonAttentionImpl,
    TritonAttentionMetadataBuilder,
)

from ringkv_vllm.backends.mixins import SnapStreamBackend, SnapStreamImpl
from ringkv_vllm.builder import SnapStreamBuilder


class SnapStreamTritonBackend(SnapStreamBackend, TritonAttentionBackend):
    @staticmethod
    def get_impl_cls() -> type["SnapStreamTritonImpl"]:
        return SnapStreamTritonImpl

    @staticmethod
    def get_builder_cls() -> type["SnapStreamTritonBuilder"]:
        return SnapStreamTritonBuilder


class SnapStreamTritonBuilder(SnapStreamBuilder, TritonAttentionMetadataBuilder):
    """The metadata builder."""


class SnapStreamTritonImpl(SnapStreamImpl, TritonAttentionImpl):
    """The implementation."""
