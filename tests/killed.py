"""A kill of a session, without a process."""

import shutil

from mlxchat import paths
from mlxchat.sessions.session import Session


def kill(session: Session) -> None:
    """Close it, and leave the files as a kill would have at this moment."""
    directory = paths.sessions_dir()
    killed = directory.with_name("killed")
    shutil.copytree(directory, killed)
    session.close()
    shutil.rmtree(directory)
    killed.rename(directory)
