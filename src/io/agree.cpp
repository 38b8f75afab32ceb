// An error is sent as the number of its kind, followed by its message.
#include "io/agree.h"

#include "base/fail.h"

namespace tessera {

void run_together(Cluster& cluster, const std::function<void()>& work) {
  std::string failure;
  auto encode = [](ErrorKind kind, const char* what) {
    return static_cast<char>('0' + static_cast<int>(kind)) + std::string(what);
  };
  try {
    work();
  } catch (const Error& e) {
    failure = encode(e.kind(), e.what());
  } catch (const std::exception& e) {
    failure = encode(ErrorKind::io, e.what());
  }
  failure = cluster.first_text(failure);
  if (!failure.empty()) throw Error(static_cast<ErrorKind>(failure[0] - '0'), failure.substr(1));
}

}  // namespace tessera
