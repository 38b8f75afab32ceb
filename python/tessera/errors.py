"""What Tessera raises. str() names the culprit, the line and a remedy."""
from . import _tessera


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
