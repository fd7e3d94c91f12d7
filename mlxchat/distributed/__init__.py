"""One model on several processes, the ranks. MLX is the transport.

Every rank runs the same operations on its own shard of the model and of each cache, in the same
order. Rank 0 runs the program and decides which; its call of such an operation is also the message
that makes the other ranks, which print nothing, call it too. Nothing but `app` knows of this.

Read `shared` first: the operations. `ranks` has the messages, `lost` what happens if a rank is
gone or hangs, `load` how a model is divided.
"""
