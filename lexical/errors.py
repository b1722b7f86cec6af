"""A user's mistake: one clear line that says what to do, exit code 2, no traceback."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from lexical.terminal import say

FILE_ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM, errno.EIO, errno.EFBIG,
    errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG,
)  # fmt: skip


class UserError(Exception):
    """Raised anywhere in the project; the entry scripts print its one line and exit with 2."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def require(valid: bool, flag: str, value: object, expected: str) -> None:
    """Raise a `UserError` unless the setting `flag` of the command line or a YAML file is `valid`."""
    if not valid:
        raise UserError(f"{flag} {value}: must be {expected}")


class ArgumentParser(argparse.ArgumentParser):
    """Reports a mistake on the command line as a `UserError`."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see --help")


def run_script(main: Callable[[Sequence[str]], object]) -> int:
    """Run an entry script's `main` with the command line's arguments; return the exit code."""
    script = sys.argv[0].rsplit("/", 1)[-1]
    try:
        main(sys.argv[1:])
    except UserError as error:
        say(f"{script}: {error}")
        return 2
    except KeyboardInterrupt:
        say(f"{script}: interrupted; the same command continues from the steps that are done")
        return 130
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno not in FILE_ERRORS:
            raise
        say(f"{script}: {error.strerror}: {error.filename or 'a file could not be written'}; fix that and repeat")
        return 1
    return 0
