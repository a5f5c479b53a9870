"""Numbers that the references share with the kernels in C++ (`native.header`) and in Triton. It imports nothing."""

WIDTH_STEP = 32  # decode attention in C++ runs the reference if the width of a head is not a multiple of this

MAX_INT8 = 127  # the largest element of a vector in int8
MAX_INT4 = 15
CLIP = 0.95  # of the largest and smallest element of a vector in int4
CLIPPED_STEP = CLIP / MAX_INT4  # between levels, of the vector's range
CHUNK, NIBBLES = 64, 4  # elements that int4 packs together; elements of a 16-bit word

MIN_HALF, MAX_HALF = 2.0**-14, 65504.0  # normal float16 numbers
OUTWARD = 2.0**-10  # relative; rounding to float16 changes a normal number by less

FIRST, BUFFERED, FIXED, CHUNKS, OLDEST = range(5)
"""Places of the counts of a slot in chunks: sinks, tokens in the buffer, tokens in chunk 0, chunks after it, the place
of the oldest one."""
