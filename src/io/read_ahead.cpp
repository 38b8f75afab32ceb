// A slice is staged as a copy of the memory that it is going to fill, padding included, so that
// feeding it is one memcpy. Threads take one example at a time, in order; after an example that
// could not be read they begin no later one. So the first example that fails is always the same
// one, however the threads run.
#include "io/read_ahead.h"

#include <pthread.h>

#include <algorithm>

#include "base/fail.h"
#include "base/threads.h"
#include "base/thrown.h"

namespace tessera {

struct ReadAhead::Staged {
  int64_t step = -1;  ///< -1: not in use
  int64_t number = 0;
  SliceRead what;
  std::vector<std::byte> bytes;
  size_t rows = 0, begun = 0, ended = 0;
  size_t failed = 0;  ///< the example of `error`
  std::exception_ptr error;

  bool is_idle() const { return begun == ended; }
  bool is_read() const { return begun == rows && is_idle(); }
};

namespace {

/// Elements from the first to the last one of a slice.
int64_t span_of(const SliceRead& what) {
  int64_t last = (std::ssize(what.examples) - 1) * what.stride;
  for (size_t d = 0; d < what.box.extent.size(); ++d)
    last += (what.box.extent[d] - 1) * what.box.strides[d];
  return last + 1;
}

void read_example(const DataSource& source, int64_t example, int field, const DataBox& box) {
  try {
    source.read(example, field, box);
  } catch (const Error&) {
    throw;
  } catch (...) {  // thrown by a user-defined source
    fail(ErrorKind::io, "[data] the source could not read '{}' of example {}: {}",
         source.fields()[static_cast<size_t>(field)].name, example, thrown_text());
  }
}

}  // namespace

bool SliceRead::operator==(const SliceRead& other) const {
  return field == other.field && stride == other.stride && examples == other.examples &&
         box.offset == other.box.offset && box.extent == other.box.extent &&
         box.strides == other.box.strides;
}

ReadAhead::ReadAhead(const DataSource& source, int threads)
    : source_(source), boxes_(static_cast<size_t>(threads) + 1) {
  size_t dims = 0;
  for (const DataField& field : source.fields()) dims = std::max(dims, field.dims.size());
  for (DataBox& box : boxes_) {
    for (auto* list : {&box.offset, &box.extent, &box.strides}) list->reserve(dims);
  }
}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  more_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

ReadAhead::Staged* ReadAhead::find(int64_t step, const SliceRead& what) {
  for (const auto& staged : all_) {
    if (staged->step == step && staged->what == what) return staged.get();
  }
  return nullptr;
}

ReadAhead::Staged& ReadAhead::stage(int64_t step, const SliceRead& what) {
  auto free = std::find_if(all_.begin(), all_.end(),
                           [](const auto& other) { return other->step < 0 && other->is_idle(); });
  if (free == all_.end()) free = all_.insert(free, std::make_unique<Staged>());
  Staged& staged = **free;
  const DType dtype = source_.fields()[static_cast<size_t>(what.field)].dtype;
  staged.what = what;
  staged.bytes.assign(static_cast<size_t>(span_of(what) * size_of(dtype)), std::byte{0});
  staged.rows = what.examples.size();
  staged.begun = staged.ended = 0;
  staged.error = nullptr;
  staged.number = count_++;
  staged.step = step;
  return staged;
}

ReadAhead::Staged* ReadAhead::next_to_read() {
  Staged* next = nullptr;
  for (const auto& staged : all_) {
    if (staged->step < 0 || staged->begun == staged->rows) continue;
    if (next == nullptr ||
        std::pair(staged->step, staged->number) < std::pair(next->step, next->number))
      next = staged.get();
  }
  return next;
}

/// Reads the next example of what is staged; called and left with the lock.
void ReadAhead::read_row(std::unique_lock<std::mutex>& lock, Staged& staged, DataBox& box) {
  const size_t row = staged.begun++;
  lock.unlock();
  const SliceRead& what = staged.what;
  const int64_t bytes = size_of(source_.fields()[static_cast<size_t>(what.field)].dtype);
  std::exception_ptr error;
  try {
    box = what.box;
    box.data = staged.bytes.data() + static_cast<int64_t>(row) * what.stride * bytes;
    read_example(source_, what.examples[row], what.field, box);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  ++staged.ended;
  if (error && (!staged.error || row < staged.failed)) {
    staged.error = error;
    staged.failed = row;
    staged.rows = staged.begun;
  }
  if (staged.is_read()) done_.notify_all();
}

void ReadAhead::work(DataBox& box) {
  std::unique_lock lock(mutex_);
  for (;;) {
    Staged* staged = nullptr;
    more_.wait(lock, [&] { return ends_ || (staged = next_to_read()) != nullptr; });
    if (ends_) return;
    read_row(lock, *staged, box);
  }
}

void ReadAhead::want(int64_t step, const SliceRead& what) {
  if (boxes_.size() == 1) return;
  const std::lock_guard lock(mutex_);
  if (find(step, what) != nullptr) return;
  stage(step, what);
  while (threads_.size() + 1 < boxes_.size())
    threads_.push_back(start_thread("reading data", [this, &box = boxes_[threads_.size()]] {
      pthread_setname_np(pthread_self(), "tessera-reader");  // for debuggers and watchdogs
      work(box);
    }));
  more_.notify_all();
}

std::span<const std::byte> ReadAhead::take(int64_t step, const SliceRead& what) {
  want(step, what);
  std::unique_lock lock(mutex_);
  Staged* staged = find(step, what);
  if (staged == nullptr) staged = &stage(step, what);
  while (threads_.empty() && !staged->is_read()) read_row(lock, *staged, boxes_.back());
  done_.wait(lock, [&] { return staged->is_read(); });
  if (staged->error) {
    const std::exception_ptr error = staged->error;
    staged->step = -1;  // asked again, it is read again
    std::rethrow_exception(error);
  }
  return staged->bytes;
}

void ReadAhead::keep(int64_t first, int64_t last) {
  const std::lock_guard lock(mutex_);
  for (const auto& staged : all_) {
    if (staged->step < 0 || (first <= staged->step && staged->step <= last)) continue;
    staged->step = -1;
    staged->rows = staged->begun;
  }
}

}  // namespace tessera
