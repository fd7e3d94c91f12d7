"""Shows a long text through the user's pager, as git does: $PAGER, else less."""

import os
import shutil
import signal
import subprocess
import tempfile

from mlxchat.handlers import handled_by
from mlxchat.terminal import is_dumb

# Quit if the text fits the screen, pass colors through, leave the text on the screen.
DEFAULTS = {"LESS": "FRX"}
NOT_FOUND = (126, 127)


def has_pager() -> bool:
    """Whether a pager can show a text with escape sequences on this terminal."""
    return bool(_command()) and not is_dumb()


def page(text: str) -> bool:
    """Show `text`, until the reader quits. False if the pager could not be run."""
    # Ctrl-C belongs to the pager: less stops a search with it.
    with tempfile.TemporaryFile() as file, handled_by(lambda *_: None, [signal.SIGINT]):
        file.write(text.encode())
        file.seek(0)
        pager = subprocess.Popen(_command(), shell=True, stdin=file, env={**DEFAULTS, **os.environ})
        try:
            return pager.wait() not in NOT_FOUND
        except BaseException:
            pager.terminate()
            pager.wait()
            raise


def _command() -> str:
    wanted = os.environ.get("PAGER")
    if wanted is not None:
        return wanted.strip()
    return "less" if shutil.which("less") else ""
