// The order of examples is a permutation that is computed, not stored. A Feistel network is a
// bijection of 2k-bit numbers for any round function. Applying it until the number is below n
// (cycle walking) makes it a bijection of [0, n); 2k is the least even number with 4^k >= n, so
// this takes fewer than 4 steps on average. The rows of all steps form one stream: row r of step s
// is position s * batch + r; its epoch is the position divided by n, and its example is the
// remainder permuted by that epoch's permutation. Ranks need no communication. What is read ahead
// is known from that alone, given that the slices of the next steps are those of this one.
#include <algorithm>
#include <cstring>
#include <functional>
#include <span>

#include "base/fail.h"
#include "base/mix.h"
#include "io/read_ahead.h"
#include "tessera/data.h"
#include "tessera/session.h"

namespace tessera {

namespace {

/// The part of a step's data that one slice takes.
struct SliceRows {
  int64_t first = 0, count = 0;
  bool empty = false;
  SliceRead read = {};  ///< without `examples`
};

/// Sets `part` to the rows of a slice, and to the part of every example that belongs to it.
void set_rows(const Slice& slice, int field, const DataField& data, const std::string& batch_dim,
              int64_t rows, SliceRows& part) {
  TESSERA_REQUIRE(
      slice.dtype == data.dtype,
      "[data] the input '{}' is {}, but the data has {}; declare the input with that dtype",
      data.name, to_string(slice.dtype), to_string(data.dtype));
  DataBox& box = part.read.box;
  for (auto* list : {&box.offset, &box.extent, &box.strides}) list->clear();
  part.empty = false;
  part.read.field = field;
  auto position = [&](const std::string& dim) {
    const auto it = std::find(slice.dims.begin(), slice.dims.end(), dim);
    TESSERA_REQUIRE(it != slice.dims.end(),
                    "[data] the input '{}' has the dims [{}], but not '{}' of the data", data.name,
                    fmt::join(slice.dims, ", "), dim);
    return static_cast<size_t>(it - slice.dims.begin());
  };
  auto require_within = [&](size_t d, int64_t size, const char* whose) {
    const int64_t end = slice.offset[d] + slice.valid[d];
    TESSERA_REQUIRE(
        slice.valid[d] == 0 || end <= size,
        "[data] dim '{}' of the input '{}' reaches {}, but the {} has {}; give the model and the "
        "data the same size",
        slice.dims[d], data.name, end, whose, size);
    part.empty = part.empty || slice.valid[d] == 0;
  };
  for (const Dim& dim : data.dims) {
    const size_t d = position(dim.name);
    require_within(d, dim.size, "data");
    box.offset.push_back(slice.offset[d]);
    box.extent.push_back(slice.valid[d]);
    box.strides.push_back(slice.strides[d]);
  }
  const size_t b = position(batch_dim);
  require_within(b, rows, "batch");
  part.first = slice.offset[b];
  part.count = slice.valid[b];
  part.read.stride = slice.strides[b];
  if (slice.dims.size() == data.dims.size() + 1) return;
  fail(ErrorKind::usage, "[data] the input '{}' has the dims [{}], more than the data: '{}'{}{}",
       data.name, fmt::join(slice.dims, ", "), batch_dim, data.dims.empty() ? "" : " and those of ",
       data.dims.empty() ? "" : Shape(data.dims).to_string());
}

}  // namespace

Permutation::Permutation(int64_t n, uint64_t seed, int64_t epoch)
    : n_(static_cast<uint64_t>(n)), half_bits_(1) {
  TESSERA_REQUIRE(n >= 1, "[data] a permutation of {} elements; it has at least 1", n);
  while (half_bits_ < 31 && (uint64_t{1} << (2 * half_bits_)) < n_) ++half_bits_;
  if ((uint64_t{1} << (2 * half_bits_)) < n_) half_bits_ = 32;
  uint64_t state = mix(seed) ^ mix(~static_cast<uint64_t>(epoch));
  for (uint64_t& key : keys_) key = state = mix(state);
}

uint64_t Permutation::encrypt(uint64_t x) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = x >> half_bits_, right = x & mask;
  for (uint64_t key : keys_) {
    const uint64_t next = (left ^ mix(right ^ key)) & mask;
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

int64_t Permutation::operator()(int64_t i) const {
  auto x = static_cast<uint64_t>(i);
  do x = encrypt(x);
  while (x >= n_);
  return static_cast<int64_t>(x);
}

struct Batcher::Reading {
  Reading(const DataSource& source, int readers) : ahead(source, readers) {}

  ReadAhead ahead;
  std::vector<SliceRows> slices;  ///< of the last feed(); the first `used` count
  size_t used = 0;
};

Batcher::Batcher(const DataSource& source, int64_t batch, const BatchOptions& options)
    : source_(source), batch_(batch), options_(options) {
  TESSERA_REQUIRE(options.readers >= 0 && options.steps_ahead >= 0,
                  "[data] {} readers, {} steps ahead; both are 0 or more", options.readers,
                  options.steps_ahead);
  reading_ = std::make_unique<Reading>(source, options.readers);
  TESSERA_REQUIRE(batch >= 1, "[data] a batch of {} examples; it has at least 1", batch);
  const int64_t n = source.examples();
  TESSERA_REQUIRE(n >= 1, "[data] the source has {} examples; it has at least 1", n);
  TESSERA_REQUIRE(
      options.repeat || n % batch == 0 || options.bounded || options.drop_tail,
      "[data] {} examples in batches of {} end with a partial batch of {}; make the batch dim "
      "of the "
      "model Dim::bounded and say `bounded`, leave these {} out with `drop_tail`, or use a "
      "batch that "
      "divides {}",
      n, batch, n % batch, n % batch, n);
  TESSERA_REQUIRE(
      options.repeat || n >= batch || !options.drop_tail,
      "[data] {} examples do not fill one batch of {}, so `drop_tail` leaves nothing; use a "
      "batch of "
      "at most {}",
      n, batch, n);
}

Batcher::~Batcher() = default;
Batcher::Batcher(Batcher&&) noexcept = default;

int64_t Batcher::steps() const {
  const int64_t n = source_.examples();
  return !options_.repeat && options_.drop_tail ? n / batch_ : (n + batch_ - 1) / batch_;
}

int64_t Batcher::rows(int64_t step) const {
  TESSERA_REQUIRE(step >= 0, "[data] there is no batch of step {}; steps begin at 0", step);
  if (options_.repeat) return batch_;
  TESSERA_REQUIRE(step < steps(),
                  "[data] there is no batch of step {}; one pass has the steps 0 to {}", step,
                  steps() - 1);
  return std::min(batch_, source_.examples() - step * batch_);
}

int64_t Batcher::example(int64_t step, int64_t row) const {
  const int64_t n = source_.examples(), position = step * batch_ + row;
  if (!options_.shuffle) return position % n;
  return Permutation(n, options_.seed, position / n)(position % n);
}

int64_t Batcher::feed(Session& session, int64_t step, std::source_location at) const {
  const int64_t count = rows(step);
  if (options_.bounded) session.set_size(options_.dim, count, at);
  const std::vector<DataField>& fields = source_.fields();
  const bool sees_all = session.cluster().local_ranks() == session.cluster().size();
  Reading& reading = *reading_;
  const auto set_examples = [&](SliceRows& part, int64_t of_step) {
    part.read.examples.clear();
    for (int64_t r = 0; r < part.count; ++r)
      part.read.examples.push_back(example(of_step, part.first + r));
  };
  reading.ahead.keep(step, step + options_.steps_ahead);
  reading.used = 0;
  for (size_t f = 0; f < fields.size(); ++f) {
    int64_t end = 0;
    const auto fill = [&](const Slice& slice) {
      if (reading.used == reading.slices.size()) reading.slices.emplace_back();
      SliceRows& part = reading.slices[reading.used];
      set_rows(slice, static_cast<int>(f), fields[f], options_.dim, count, part);
      if (part.count > 0) end = std::max(end, part.first + part.count);
      if (part.empty || part.count == 0) return;
      ++reading.used;
      set_examples(part, step);
      const std::span<const std::byte> bytes = reading.ahead.take(step, part.read);
      std::memcpy(slice.data, bytes.data(), bytes.size());
    };
    session.feed_slices(fields[f].name, std::cref(fill), at);
    TESSERA_REQUIRE(
        !sees_all || end == count,
        "[data] the input '{}' takes {} rows of '{}', but a batch has {}; give both the same size",
        fields[f].name, end, options_.dim, count);
  }
  // The slices are those of steps with as many rows.
  int64_t last = step;
  while (last < step + options_.steps_ahead && (options_.repeat || last + 1 < steps()) &&
         rows(last + 1) == count)
    ++last;
  reading.ahead.keep(step + 1, last);
  for (int64_t next = step + 1; next <= last; ++next) {
    for (size_t s = 0; s < reading.used; ++s) {
      set_examples(reading.slices[s], next);
      reading.ahead.want(next, reading.slices[s].read);
    }
  }
  return count;
}

}  // namespace tessera
