"""What the checks of the packages and of the image have in common."""

import time


def say(text):
    print(time.strftime("%H:%M:%S"), text, flush=True)


def require(holds, text):
    if not holds:
        raise SystemExit(f"FAILED: {text}")


def eventually(seconds, what, holds):
    deadline = time.monotonic() + seconds
    while not holds():
        require(time.monotonic() < deadline, f"after {seconds} s: {what}")
        time.sleep(0.1)
