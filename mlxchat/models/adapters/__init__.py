"""Adapters: what fine-tuning changed, kept apart from the weights of the model.

find.py     name → directory, downloaded if necessary
read.py     directory → arrays, in mlx-lm's layout
peft.py     the same for PEFT's layout
apply.py    arrays → network
"""
