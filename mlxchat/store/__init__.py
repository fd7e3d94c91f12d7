"""What can be computed again, in files: snapshots, pages and blocks; and checkpoints and output.

Conversations are for `sessions`. Read `tensor_file` first: the format of what can be lost.
"""
