"""`make demo`: what is special about mlxchat, in less than a minute.

A chat in a small window forgets its first turn and recalls it. Then two questions about the same
document show that it is read only once. The real program runs in a pseudo-terminal, with the
embedded model and an empty home directory, and this script types. In a pipe, it prints the final
screens without escape sequences.
"""

import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pexpect
import pyte

SCRIPTS = Path(__file__).parent
# Greedy, so that the replies are always the same; not saved, as the home directory will be gone.
SETTINGS = {
    "MLXCHAT_MODEL": "smollm2",
    "MLXCHAT_CHAT_SAVE": "false",
    "MLXCHAT_CHAT_TEMP": "0",
    "MLXCHAT_GENERATE_TEMP": "0",
    "MLXCHAT_NO_PROJECT": "1",
}

WINDOW = 160
SYSTEM = "Answer in as few words as possible."
CHAT = ["mlxchat", "--max-kv-size", str(WINDOW), "-s", SYSTEM]
SAID = (
    "Remember: the code of the door is 4071.",
    "What is the capital of Italy?",
    "What is the largest planet?",
    "What color is the sky?",
    "/recall code",
    "/recall code #1",
    "What is the code of the door?",
)

GENERATE = ["mlxchat", "generate", "-f", "scripts/demo.txt"]
QUESTIONS = ("How long is the bridge?", "What was the name of the first keeper?")

KEY_S = 0.03
QUIET_S = 0.5
PATIENCE_S = 300


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="mlxchat-demo-") as home:
        environment = demo_environment(home)
        Shown(["mlxchat", "models", "info", "smollm2"], environment, is_shown=False).ends()
        show_chat(environment)
        show_document(environment)


def demo_environment(home: str) -> dict[str, str]:
    """The user's environment, without anything that could change what the demo shows."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MLXCHAT_", "XDG_"))
    }
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    # Nothing answers here if the program asks the terminal for the position of its cursor.
    own = {"PROMPT_TOOLKIT_NO_CPR": "1", "HOME": home, "PATH": programs, "TERM": "xterm-256color"}
    return {**kept, **SETTINGS, **own}


def show_chat(environment: dict[str, str]) -> None:
    explain(f"SmolLM2-135M in a window of {WINDOW} tokens forgets a turn, and /recall finds it.")
    chat = Shown(CHAT, environment)
    say(chat)
    chat.types("\x04")
    chat.ends()


def say(chat: "Shown") -> None:
    for text in SAID:
        chat.waits()
        chat.types(f"{text}\r")
    chat.waits()


def show_document(environment: dict[str, str]) -> None:
    explain("Two questions about one document, which is read only once.")
    waited_s: list[str] = []
    for question in QUESTIONS:
        run = Shown([*GENERATE, question], environment)
        run.ends()
        print()
        waited_s += re.findall(r"first\s+token\s+([\d.]+)\s+s", run.written)
    print(f"First token after {waited_s[0]} s, then after {waited_s[1]} s.")


def explain(text: str) -> None:
    print(f"\n# {text}\n", flush=True)


class Shown:
    """A command that runs in a pseudo-terminal; its output is copied to ours."""

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str],
        *,
        is_shown: bool = True,
        size: tuple[int, int] | None = None,
    ) -> None:
        columns, lines = size or shutil.get_terminal_size((80, 60))
        self._is_shown = is_shown
        obeys_escapes = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._is_copied = is_shown and obeys_escapes
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.Stream(self.screen)
        self.written = ""
        if is_shown:
            print(f"$ {typed(command)}", flush=True)
        self._child: pexpect.spawn[str] = pexpect.spawn(
            command[0],
            command[1:],
            cwd=str(SCRIPTS.parent),
            env=environment,
            encoding="utf-8",
            dimensions=(lines, columns),
        )
        # Answers the terminal's queries, such as for the cursor position.
        vars(self.screen)["write_process_input"] = self._child.send

    def types(self, text: str) -> None:
        """Press keys one by one, as a person does."""
        for key in text:
            self._child.send(key)
            self._copy(KEY_S)

    def waits(self) -> None:
        """Until it is the user's turn and nothing has changed for a while."""
        ends_s = time.monotonic() + PATIENCE_S
        while self._copy(QUIET_S) or not asks(self.screen):
            if time.monotonic() > ends_s:
                raise SystemExit("the demo does not continue:\n" + "\n".join(self.screen.display))

    def ends(self) -> None:
        while self._child.isalive():
            self._copy(QUIET_S)
        self._copy(QUIET_S)
        if self._child.exitstatus:
            raise SystemExit(f"the demo failed:\n{self.written}")
        if self._is_shown and not self._is_copied:
            rows = [row.rstrip() for row in self.screen.display]
            print("\n".join(rows).rstrip("\n"), flush=True)

    def _copy(self, wait_s: float) -> bool:
        """Copy what the command writes within that time. Whether there was anything."""
        try:
            text = self._child.read_nonblocking(1 << 16, timeout=wait_s)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return False
        self.written += text
        self._stream.feed(text)
        if self._is_copied:
            sys.stdout.write(text)
            sys.stdout.flush()
        return True


def asks(screen: pyte.Screen) -> bool:
    """Whether the cursor is at an empty prompt."""
    return screen.cursor.x == 2 and screen.display[screen.cursor.y].strip() == ">"


def typed(command: list[str]) -> str:
    return " ".join(f'"{word}"' if " " in word else word for word in command)


if __name__ == "__main__":
    main()
