// Errors. Every failure that Tessera reports is an exception of one type, with a kind and a message
// that names the culprit, the numbers and the remedy. The library never exits, aborts or prints.
#pragma once

#include <stdexcept>
#include <string>

namespace tessera {

enum class ErrorKind {
  usage,        ///< the caller's input is wrong; nothing was changed
  unsupported,  ///< a legal request that this build or device cannot serve
  device,       ///< a device or a kernel failed
  comm,         ///< a peer died, hung or disagrees; the Session is unusable
  io,           ///< a file could not be read or written
  internal,     ///< a bug in Tessera: please report it
};

/// What failed, for callers that act on it.
enum class ErrorCode {
  none,
  not_finite,       ///< a loss, a gradient or a checked tensor is infinite or NaN
  unknown_machine,  ///< a machine profile lacks what a prediction needs
};

/// The name of a kind, for logs: "usage", "comm", ...
const char* to_string(ErrorKind kind);

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, ErrorCode code = ErrorCode::none)
      : std::runtime_error(message), kind_(kind), code_(code) {}
  ErrorKind kind() const { return kind_; }
  ErrorCode code() const { return code_; }

 private:
  ErrorKind kind_;
  ErrorCode code_;
};

/// This process stops because another one failed. The message includes the message of that process,
/// so a program need not print both.
class PeerFailure : public Error {
 public:
  using Error::Error;
};

/// Every process throws this one alike: rank 0 prints it for all.
class CommonFailure : public Error {
 public:
  using Error::Error;
};

}  // namespace tessera
