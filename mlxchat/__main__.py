"""`python -m mlxchat`."""

from mlxchat.cli import main

main()
