"""What the commands do, for Python callers too. Prints nothing and uses no terminal.

A run is one generation with everything that belongs to it: the model with a window that fits this
machine, prompts that were read before, blocks, an output file, limits and checkpoints. What a
person sees of it is for `terminal`. Read `begin` first, then `run`; `chat` for conversations.

    request = Request(Setup("smollm2", window=512), "The capital of France?", max_tokens=100)
    with begin(request) as run:
        for piece in run:
            print(piece.text, end="", flush=True)
    print(run.stats.finish_reason)

An overnight run writes its text to a file and keeps what it needs to continue after a crash:

    overnight = Overnight(checkpoint=Path("night"), lasting_s=8 * 3600)
    with begin(Request(Setup("smollm2"), "A saga.", ignore_eos=True, overnight=overnight)) as run:
        run.write()
    with resume("night", lasting_s=3600) as run:
        run.write()

`open_model(Setup("smollm2"))` only loads the model, fits its window and makes an empty cache.
"""
