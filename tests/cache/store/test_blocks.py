import torch

from ringkv.cache.store.stored_row import Blocks


def test_tensors_of_any_size_and_dtype_are_read_as_they_were_written() -> None:
    """In blocks of 40 bytes, so that most of them cross a border or begin inside an element."""
    memory = torch.zeros(7, 40, dtype=torch.uint8)
    blocks = Blocks(memory, [5, 1, 6, 2])
    written = [torch.randn(3), torch.arange(27, dtype=torch.int8), torch.randn(2, 5, 2), torch.randn(3, 5).half()]
    blocks.write([*written, torch.empty(0, 4)])
    first = 0
    for tensor in written:
        assert torch.equal(blocks.read(first, tensor.dtype, tensor.shape), tensor)
        first += tensor.nbytes
    assert first == 12 + 27 + 80 + 30
    assert blocks.read(first, torch.float32, (0, 4)).shape == (0, 4)
    assert not memory[[0, 3, 4]].any()
    assert memory[5, :12].view(torch.float32).tolist() == written[0].tolist()


def test_a_tensor_in_one_block_is_read_without_a_copy() -> None:
    blocks = Blocks(torch.zeros(2, 40, dtype=torch.uint8), [1, 0])
    blocks.write([torch.randn(5), torch.randn(5), torch.randn(5)])
    assert blocks.read(20, torch.float32, (5,)).data_ptr() == blocks.memory[1, 20:].data_ptr()
    blocks.memory.zero_()
    assert not blocks.read(20, torch.float32, (5,)).any()
