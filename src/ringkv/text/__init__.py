"""Tokens to text and back: tokenizers, chat templates, grammars, and what an answer contains.

Others import `answers.reader`, `answers.spans`, `answers.tools`, `chat_template`, `gguf_tokenizer`,
`grammar`, `guide`, `guide_processes`, `repeat_words`, `stream` and `tokenizer`.
"""
