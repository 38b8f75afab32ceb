// What a Batcher reads ahead: how much, in which threads, and what happens to faults.
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "support/io_folder.h"
#include "tessera/data.h"
#include "tessera/tessera.h"

using namespace tessera;
using test::Folder;

namespace TESSERA_FILE {

constexpr int64_t kExamples = 40, kBatch = 4, kWidth = 3;

/// Values [example * 10 + column], and a record of what was read by whom.
class Watched : public DataSource {
 public:
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t examples() const override { return kExamples; }
  void read(int64_t example, int, const DataBox& box) const override {
    {
      const std::lock_guard lock(mutex_);
      threads_.insert(std::this_thread::get_id());
    }
    ++reads_;
    if (example == bad) throw std::runtime_error("disk on fire");
    for (int64_t c = 0; c < box.extent[0]; ++c)
      static_cast<float*>(box.data)[c * box.strides[0]] =
          static_cast<float>(example * 10 + box.offset[0] + c);
  }
  int64_t reads() const { return reads_; }
  /// Waits until so many reads have begun, and a little longer, for those that should not.
  void wait_for(int64_t reads) const {
    for (int tries = 0; tries < 2000 && reads_ < reads; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  bool was_read_by(std::thread::id thread) const {
    const std::lock_guard lock(mutex_);
    return threads_.contains(thread);
  }
  std::atomic<int64_t> bad = -1;

 private:
  std::vector<DataField> fields_ = {{"x", DType::float32, {Dim("cols", kWidth)}}};
  mutable std::mutex mutex_;
  mutable std::set<std::thread::id> threads_;
  mutable std::atomic<int64_t> reads_ = 0;
};

struct Reader {
  explicit Reader(const std::string& layout = "", const Dim& batch = Dim("batch", kBatch)) {
    Tensor x = g.input("x", {Dim("cols", kWidth), batch}, DType::float32);  // in another order
    session = std::make_unique<Session>(
        g, ranks,
        CompileOptions{
            Mesh::parse("a:2;b:2"), Layout::parse(layout), {{"run", {sum_all(x)}, false}}});
  }
  /// Feeds a step and checks every element.
  void feed(const Batcher& batches, int64_t step) {
    const int64_t rows = batches.feed(*session, step);
    const Array got = session->fetch("x");
    REQUIRE(got.elements() == rows * kWidth);
    for (int64_t i = 0; i < got.elements(); ++i)
      CHECK(got.at(i) == static_cast<double>(batches.example(step, i % rows) * 10 + i / rows));
  }
  Graph g;
  Cluster ranks = Cluster::threads(4);
  std::unique_ptr<Session> session;
};

BatchOptions ahead(int readers, int steps) {
  BatchOptions options;
  options.seed = 3;
  options.readers = readers;
  options.steps_ahead = steps;
  return options;
}

TEST_CASE("data is read ahead by threads, so many steps and no more", "[data]") {
  const Watched source;
  Reader reader;  // all ranks have the same data, which is read once
  const Batcher batches(source, kBatch, ahead(3, 2));
  reader.feed(batches, 0);
  source.wait_for(3 * kBatch);
  CHECK(source.reads() == 3 * kBatch);
  reader.feed(batches, 1);
  source.wait_for(4 * kBatch);
  CHECK(source.reads() == 4 * kBatch);  // step 1 was there, and step 3 is new
  for (int64_t step = 2; step < 25; ++step) reader.feed(batches, step);  // over two epochs
  source.wait_for(27 * kBatch);
  CHECK(source.reads() == 27 * kBatch);
  CHECK_FALSE(source.was_read_by(std::this_thread::get_id()));
}

TEST_CASE("without readers, feed() itself reads and nothing is read ahead", "[data]") {
  const Watched source;
  Reader reader;
  const Batcher batches(source, kBatch, ahead(0, 2));
  for (int64_t step = 0; step < 12; ++step) reader.feed(batches, step);
  CHECK(source.reads() == 12 * kBatch);
  CHECK(source.was_read_by(std::this_thread::get_id()));
}

TEST_CASE("what is read ahead changes no value: layouts, any order of steps, short ends",
          "[data]") {
  const Watched source;
  for (const char* layout : {"", "batch:a", "cols:a", "cols:a;batch:b", "batch:a+b"}) {
    INFO(layout);
    Reader reader(layout);
    const Batcher batches(source, kBatch, ahead(2, 3));
    for (const int64_t step : {0, 1, 2, 9, 3, 4, 4, 1000, 5, 6, 7, 0}) reader.feed(batches, step);
  }
  BatchOptions options = BatchOptions::evaluation();
  options.bounded = true;
  Reader reader("batch:a", Dim::bounded("batch", 7));
  const Batcher once(source, 7, options);  // 40 = 5 * 7 + 5
  for (int pass = 0; pass < 2; ++pass) {
    for (int64_t step = 0; step < once.steps(); ++step) reader.feed(once, step);
  }
}

TEST_CASE("two sessions may take turns at one batcher", "[data]") {
  const Watched source;
  Reader whole, split("batch:a");
  const Batcher batches(source, kBatch, ahead(2, 2));
  for (int64_t step = 0; step < 6; ++step) (step % 2 == 0 ? whole : split).feed(batches, step);
}

TEST_CASE("a fault in a reading thread surfaces at the step that needs the example", "[data]") {
  for (const int readers : {0, 1, 4}) {
    INFO(readers << " readers");
    Watched source;
    Reader reader;
    const Batcher batches(source, kBatch, ahead(readers, 2));
    const int64_t bad = batches.example(2, 1);
    source.bad = bad;
    reader.feed(batches, 0);
    source.wait_for(readers > 0 ? 3 * kBatch - 2 : 0);
    reader.feed(batches, 1);
    const Folder f;
    const std::string message = "io [data] the source could not read 'x' of example " +
                                std::to_string(bad) + ": disk on fire";
    CHECK(f.error([&] { batches.feed(*reader.session, 2); }) == message);
    CHECK(f.error([&] { batches.feed(*reader.session, 2); }) == message);
    reader.feed(batches, 3);
    source.bad = -1;  // and once the disk is well again, the step is read
    reader.feed(batches, 2);
  }
  const Watched source;
  const Folder f;
  CHECK(f.error([&] { Batcher(source, kBatch, ahead(-1, 2)); }) ==
        "usage [data] -1 readers, 2 steps ahead; both are 0 or more");
}

TEST_CASE("a batcher ends while its threads read", "[data]") {
  class Slow : public Watched {
    void read(int64_t example, int field, const DataBox& box) const override {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      Watched::read(example, field, box);
    }
  };
  const Slow source;
  Reader reader;
  for (int round = 0; round < 3; ++round) {
    const Batcher batches(source, kBatch, ahead(2, 2));
    reader.feed(batches, round);
  }
  Batcher first(source, kBatch, ahead(2, 2));
  reader.feed(first, 0);
  const Batcher moved = std::move(first);
  reader.feed(moved, 1);
}

}  // namespace TESSERA_FILE
