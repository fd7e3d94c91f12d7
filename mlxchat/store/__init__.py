"""What can be computed again, in files: snapshots, pages, blocks; and checkpoints and output."""
