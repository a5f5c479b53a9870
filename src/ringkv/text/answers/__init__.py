"""What a chat model's text says: what is shown, what it thought, which tools it calls."""
