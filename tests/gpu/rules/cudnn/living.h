// Objects that a library made and has not destroyed yet.
#pragma once

#include <map>
#include <memory>
#include <mutex>

namespace tessera::test::rules {

template <class Handle, class T>
class Living {
 public:
  Handle make(T value) {
    auto made = std::make_unique<T>(std::move(value));
    const Handle handle = reinterpret_cast<Handle>(made.get());
    const std::lock_guard lock(mutex_);
    all_[handle] = std::move(made);
    return handle;
  }
  /// Null if there is none, or it was destroyed.
  T* find(Handle handle) const {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(handle);
    return found == all_.end() ? nullptr : found->second.get();
  }
  bool drop(Handle handle) {
    const std::lock_guard lock(mutex_);
    return all_.erase(handle) == 1;
  }
  size_t size() const {
    const std::lock_guard lock(mutex_);
    return all_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::map<Handle, std::unique_ptr<T>> all_;
};

}  // namespace tessera::test::rules
