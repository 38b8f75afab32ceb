#include "tessera/caller.h"

namespace tessera {

namespace {
thread_local const CallerScope* innermost = nullptr;
}

CallerScope::CallerScope(std::string file, int line)
    : file_(file.substr(file.rfind('/') + 1)), line_(line), outer_(innermost) {
  innermost = this;
}
CallerScope::~CallerScope() { innermost = outer_; }
const CallerScope* CallerScope::current() { return innermost; }

}  // namespace tessera
