// Threads that read the data of coming steps.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "tessera/data.h"

namespace tessera {

/// The part of a step's data that one slice of an input takes: the same box of several examples.
struct SliceRead {
  int field = 0;
  DataBox box;                    ///< without `data`
  int64_t stride = 0;             ///< elements from one example to the next
  std::vector<int64_t> examples;  ///< in the order in which they lie
  bool operator==(const SliceRead& other) const;
};

/// Reads slices of a source. All calls come from one thread.
class ReadAhead {
 public:
  /// `threads` >= 0. With none, take() reads.
  ReadAhead(const DataSource& source, int threads);
  /// Waits for reads that have begun.
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;

  /// Has `what` of a step read. Steps are read in their order, and one step in the order of calls.
  void want(int64_t step, const SliceRead& what);
  /// Waits until `what` of a step is read, which want() need not have named, and returns it as it
  /// is to lie from the slice's first element on; valid until keep(). Throws what the source threw
  /// for the first example that it could not read; other exceptions than Errors become io errors
  /// that name field and example.
  std::span<const std::byte> take(int64_t step, const SliceRead& what);
  /// Forgets all steps but those from `first` to `last`.
  void keep(int64_t first, int64_t last);

 private:
  struct Staged;
  Staged* find(int64_t step, const SliceRead& what);
  Staged& stage(int64_t step, const SliceRead& what);
  Staged* next_to_read();
  void read_row(std::unique_lock<std::mutex>& lock, Staged& staged, DataBox& box);
  void work(DataBox& box);

  const DataSource& source_;
  std::vector<DataBox> boxes_;  ///< one a thread; the last is that of the caller
  std::mutex mutex_;
  std::condition_variable more_, done_;
  bool ends_ = false;
  int64_t count_ = 0;  ///< of want() and take(): orders what is staged
  /// Used again and again, as boxes_ are: a step allocates nothing.
  std::vector<std::unique_ptr<Staged>> all_;
  std::vector<std::thread> threads_;
};

}  // namespace tessera
