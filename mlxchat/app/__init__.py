"""What the commands do, from Python too. Prints nothing, and knows no terminal."""
