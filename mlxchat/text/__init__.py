"""Text and tokens: documents, chat templates and prompts on the way in, replies on the way out.

Knows nothing of models: where a tokenizer's files are is for `models`, which token comes next for
`engine`. Read `tokens` first; then `template` for prompts and `reply_reader` for replies.
"""
