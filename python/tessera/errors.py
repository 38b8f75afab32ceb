"""What Tessera raises. str() names the culprit, the line and a remedy; a printed traceback ends in the user's line."""
import os
import sys

from . import _tessera

#: The exit code of a process that a CommError or a DeviceError ends, as of `tessera train`: docs/reference/exit-codes.md.
RESTART_HELPS = 76
FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Error(RuntimeError):
    """The base of all."""


class UsageError(Error, ValueError):
    """The caller's input is wrong; nothing was changed."""


class UnsupportedError(Error):
    """A legal request that this build or device cannot serve."""


class DeviceError(Error):
    """A device or a kernel failed."""


class CommError(Error):
    """A peer died, hung or disagrees; the run is unusable."""


class IoError(Error, OSError):
    """A file could not be read or written."""


class InternalError(Error):
    """A bug in Tessera: please report it."""


for _class in (Error, UsageError, UnsupportedError, DeviceError, CommError, IoError, InternalError):
    _class.__module__ = "tessera"  # as it is imported, and as tracebacks show it
_tessera.set_errors([UsageError, UnsupportedError, DeviceError, CommError, IoError, InternalError])


def end_in_users_line(error):
    """Cuts the frames of this package off the end of a traceback: it ends in the line that is wrong."""
    frame, last = error.__traceback__, None
    while frame is not None:
        if not frame.tb_frame.f_code.co_filename.startswith(FOLDER):
            last = frame
        frame = frame.tb_next
    if last is not None:
        last.tb_next = None


def _is_users(error):
    """Of a bug in Tessera all frames are shown."""
    return isinstance(error, Error) and not isinstance(error, InternalError)


def _print_to_users_line():
    """For what Python prints of an uncaught error, and IPython of one in a cell."""
    then = sys.excepthook

    def hook(kind, error, trace):
        if _is_users(error):
            end_in_users_line(error)
            trace = error.__traceback__
        then(kind, error, trace)
        if isinstance(error, (CommError, DeviceError)):
            raise SystemExit(RESTART_HELPS)  # Python takes it from here

    sys.excepthook = hook
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:

        def show(self, kind, error, trace, tb_offset=None):
            if _is_users(error):
                end_in_users_line(error)
            self.showtraceback((kind, error, error.__traceback__), tb_offset=tb_offset)

        shell.set_custom_exc((Error,), show)


_print_to_users_line()
