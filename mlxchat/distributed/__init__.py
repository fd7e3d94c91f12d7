"""Several processes, one model: rank 0 leads, the others follow. The transport is MLX's own."""
