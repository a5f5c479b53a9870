"""in_chunks: the longest prompt as a number of whole chunks."""

DEFAULT_CHUNK = 512
DEFAULT_CHUNK_ON_GPU = 2048  # a smaller chunk is bound by kernel launches


def in_chunks(prompt: int, context: int, chunk: int, workspace: int | None = None) -> tuple[int, int]:
    """Return the chunk and the prompt limit: `prompt` tokens, rounded up to a multiple of the chunk.

    If the rounded limit exceeds the context, the chunk is made smaller so that whole chunks fit in the context. The
    limit is then below the context by less than one token per chunk.
    """
    chunk = min(context, chunk)
    if workspace is not None and workspace < prompt:
        return chunk, prompt  # whole chunks are staged whatever the limit is
    chunks = -(-prompt // chunk)
    if chunks * chunk > context:
        chunk = context // chunks
    return chunk, chunks * chunk
