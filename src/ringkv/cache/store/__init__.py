"""What outlives a request: keys and values in host memory, for prompts that begin with the same tokens."""
