"""One model on several processes: rank 0 leads, the others follow. MLX is the transport."""
