#include "tessera/caller.h"

#include <utility>

namespace tessera {

namespace {
thread_local const CallerScope* innermost = nullptr;
}

CallerScope::CallerScope(std::string file, int line)
    : path_(std::move(file)), line_(line), outer_(innermost) {
  innermost = this;
}
CallerScope::~CallerScope() { innermost = outer_; }
const CallerScope* CallerScope::current() { return innermost; }

}  // namespace tessera
