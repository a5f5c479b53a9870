"""The FlashAttention backend for CUDA."""

from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadataBuilder,
)

from ringkv_vllm.backends.mixins import SnapStreamBackend, SnapStreamImpl
from ringkv_vllm.builder import SnapStreamBuilder


class SnapStreamFlashBuilder(SnapStreamBuilder, FlashAttentionMetadataBuilder):
    """The metadata builder."""


class SnapStreamFlashImpl(SnapStreamImpl, FlashAttentionImpl):
    """The implementation."""


class SnapStreamFlashBackend(SnapStreamBackend, FlashAttentionBackend):
    impl, builder = SnapStreamFlashImpl, SnapStreamFlashBuilder
