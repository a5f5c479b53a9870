"""Tokens to text and back: tokenizers, chat templates, grammars, and what an answer contains.

Others import `answers.answer_stream`, `answers.reader`, `answers.spans`, `answers.tools`, `chat_template`,
`generation_config`, `gguf_tokenizer`, `grammar`, `guide`, `guide_processes`, `repeat_words` and `tokenizer`.
"""
