// From the last step up, a matmul joins the open batch of its shape, which stands at the place of
// its last member. Each operand is either the same window of one buffer in all members, or the same
// window of a transient buffer of each, and these become parts of one buffer. A batch that takes
// too much memory, or more time than its members, is halved.
#include "lower/passes/batch_products.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cost/cost.h"
#include "lower/passes/drop_unused_buffers.h"
#include "lower/passes/fuse_merge.h"
#include "lower/passes/liveness.h"
#include "lower/passes/step_bounds.h"
#include "program/buffer_room.h"

namespace tessera {

namespace {

/// Without prices: results with more elements have enough tiles to fill a GPU.
constexpr int64_t kSmallResult = int64_t{1} << 22;
constexpr size_t kMostMembers = 16;

constexpr int64_t kBatch = 0;  // of "kinds"
/// The two operands, then the results.
View& operand(Step& step, size_t x) { return x < 2 ? step.in[x] : step.out[x - 2]; }
const View& operand(const Step& step, size_t x) { return x < 2 ? step.in[x] : step.out[x - 2]; }
size_t operands(const Step& step) { return 2 + step.out.size(); }

/// A matmul without batch dims whose epilogue, if any, has no operand of its own.
bool may_join(const Step& step) {
  if (step.kernel != KernelKind::contract || step.in.size() != 2) return false;
  return is_floating(step.in[0].dtype) && product_sizes(step).batch == 1;
}

/// Equal for the members of a batch.
std::string key_of(const Program& program, const Step& step) {
  std::string key = step.attrs.to_string();
  for (size_t x = 0; x < operands(step); ++x) {
    const View& v = operand(step, x);
    key += fmt::format("|{} {} {} {}+{}{}", static_cast<int>(v.dtype), fmt::join(v.sizes, ","),
                       fmt::join(v.strides, ","), room_of(program.buffers[v.buffer]), v.offset,
                       v.shift.to_string());
  }
  for (const Instr& i : step.pointwise.code)
    key += fmt::format(";{} {} {} {} {} {:a}", static_cast<int>(i.code), static_cast<int>(i.dtype),
                       i.a, i.b, i.slot, i.imm);
  return key + fmt::format("!{}", fmt::join(step.unused, ","));
}

using Members = std::vector<int>;  ///< places, the last first

class Batcher {
 public:
  Batcher(Program& program, Function& function, const StepPrices& prices,
          const std::function<bool(const Step&)>& takes,
          const std::function<int64_t(const Step&)>& workspace)
      : program_(program),
        function_(function),
        prices_(prices),
        takes_(takes),
        workspace_(workspace),
        bounds_(program, function),
        ranges_(live_ranges(program, function)),
        live_(live_bytes(program, function)) {
    peak_ = *std::max_element(live_.begin(), live_.end());
    std::vector<char> fixed = fixed_buffers(program, function);
    for (const Step& step : function.steps) {
      if (step.kind == StepKind::compute && step.body.empty()) continue;
      visit_views(step, [&](const View& v) { fixed[v.buffer] = 1; });
    }
    for (size_t b = 0; b < fixed.size(); ++b)
      movable_.push_back(fixed[b] == 0 && !program.buffers[b].alternates);
  }

  /// True if something changed.
  bool run() {
    std::map<std::string, Members> open;
    for (int s = function_.first_update - function_.late; s-- > function_.early;) {
      if (!may_join(at(s))) continue;
      Members& batch = open[key_of(program_, at(s))];
      if (!batch.empty() && !accepts(batch, s)) close(batch);
      batch.push_back(s);
    }
    for (auto& [key, batch] : open) close(batch);
    if (batches_.empty()) return false;
    put_together();
    return true;
  }

 private:
  int count() const { return static_cast<int>(function_.steps.size()); }
  const Step& at(int place) const { return function_.steps[static_cast<size_t>(place)]; }

  bool all_read(const Members& batch, size_t x) const {
    return x < 2 && operand(at(batch[0]), x).buffer == operand(at(batch[1]), x).buffer;
  }

  /// True if the operands of the members can become parts of common buffers.
  bool fits(const Members& batch) const {
    std::vector<int> parts;
    for (size_t x = 0; x < operands(at(batch[0])); ++x) {
      const bool common = all_read(batch, x);
      for (const int m : batch) {
        const int buffer = operand(at(m), x).buffer;
        if (common ? buffer != operand(at(batch[0]), x).buffer : !movable_[buffer]) return false;
        if (!common) parts.push_back(buffer);
      }
    }
    std::sort(parts.begin(), parts.end());
    return std::adjacent_find(parts.begin(), parts.end()) == parts.end();
  }

  bool accepts(const Members& batch, int place) const {
    if (batch.size() == kMostMembers || bounds_.of(place).second <= batch[0]) return false;
    Members more = batch;
    more.push_back(place);
    return fits(more);
  }

  Step batch_of(const Members& members) const {
    Step batch = at(members[0]);
    std::vector<int64_t> kinds = batch.attrs.get<std::vector<int64_t>>("kinds");
    kinds.insert(kinds.begin(), kBatch);
    batch.attrs.set("kinds", kinds);
    batch.flops *= static_cast<int64_t>(members.size());
    for (size_t x = 0; x < operands(batch); ++x) {
      View& v = operand(batch, x);
      const int64_t apart = room_of(program_.buffers[v.buffer]) / size_of(v.dtype);
      v.sizes.insert(v.sizes.begin(), static_cast<int64_t>(members.size()));
      v.strides.insert(v.strides.begin(), all_read(members, x) ? 0 : apart);
    }
    return batch;
  }

  bool is_faster(const Members& members, const Step& batch) const {
    const Step& one = at(members[0]);
    if (prices_.seconds)
      return prices_.seconds(batch) < static_cast<double>(members.size()) * prices_.seconds(one);
    const ProductSizes sizes = product_sizes(one);
    return sizes.m * sizes.n <= kSmallResult;
  }

  /// live_ with the members' operands in common buffers.
  std::vector<int64_t> live_with(const Members& members) const {
    std::vector<int64_t> bytes = live_;
    const auto add = [&](const LiveRange& range, int64_t room) {
      for (int s = range.first; s <= range.last; ++s) bytes[static_cast<size_t>(s)] += room;
    };
    for (size_t x = 0; x < operands(at(members[0])); ++x) {
      const bool common = all_read(members, x);
      LiveRange whole{count(), members[0]};
      int64_t room = 0;
      for (const int m : members) {
        const int buffer = operand(at(m), x).buffer;
        const auto range = ranges_.find(buffer);
        if (range == ranges_.end()) continue;  // stored
        const int64_t part = room_of(program_.buffers[buffer]);
        whole.first = std::min(whole.first, range->second.first);
        whole.last = std::max(whole.last, range->second.last);
        room += part;
        add(range->second, -part);
        if (common) break;
      }
      add(whole, room);
    }
    return bytes;
  }

  /// Makes batches of the members if that pays, and clears them.
  void close(Members& members) {
    const Members batch = std::move(members);
    members.clear();
    if (batch.size() < 2) return;
    const Step step = batch_of(batch);
    const bool ends = !step.pointwise.code.empty() || step.attrs.has("sums");
    if (ends && takes_ && !takes_(step)) return;
    // Another batch may have taken operands since.
    if (fits(batch) && is_faster(batch, step)) {
      std::vector<int64_t> bytes = live_with(batch);
      const int64_t there = bytes[static_cast<size_t>(batch[0])];
      if (*std::max_element(bytes.begin(), bytes.end()) <= peak_ &&
          there + (workspace_ ? workspace_(step) : 0) <= peak_) {
        live_ = std::move(bytes);
        join(batch, step);
        return;
      }
    }
    const auto half = batch.begin() + static_cast<std::ptrdiff_t>(batch.size() / 2);
    for (Members part : {Members(batch.begin(), half), Members(half, batch.end())}) close(part);
  }

  /// Gives each operand its part of a common buffer, in the order of the steps.
  void join(const Members& members, Step step) {
    for (size_t x = 0; x < operands(step); ++x) {
      if (all_read(members, x)) continue;
      const int first = operand(step, x).buffer;
      const int64_t room = room_of(program_.buffers[first]);
      const int common = static_cast<int>(program_.buffers.size());
      Buffer buffer = program_.buffers[first];
      buffer.bytes = room * static_cast<int64_t>(members.size());
      int64_t at_byte = 0;
      for (auto m = members.rbegin(); m != members.rend(); ++m, at_byte += room) {
        const int part = operand(at(*m), x).buffer;
        parts_[part] = {common, at_byte};
        movable_[part] = false;
      }
      program_.buffers.push_back(std::move(buffer));
      operand(step, x).buffer = common;
    }
    batches_[members[0]] = {members, std::move(step)};
  }

  void put_together() {
    std::vector<char> joined(function_.steps.size(), 0);
    for (const auto& [place, batch] : batches_) {
      for (const int m : batch.first) joined[static_cast<size_t>(m)] = 1;
    }
    std::vector<Step> steps;
    int stores = 0;
    for (int s = 0; s <= count(); ++s) {
      if (s == function_.first_update) stores = static_cast<int>(steps.size());
      if (s == count()) break;
      if (const auto it = batches_.find(s); it != batches_.end()) {
        steps.push_back(std::move(it->second.second));
      } else if (joined[static_cast<size_t>(s)] == 0) {
        steps.push_back(std::move(function_.steps[static_cast<size_t>(s)]));
      }
    }
    for (Step& step : steps) {
      visit_views(step, [&](View& v) {
        const auto part = parts_.find(v.buffer);
        if (part == parts_.end()) return;
        v.buffer = part->second.first;
        v.offset += part->second.second / size_of(v.dtype);
      });
    }
    function_.steps = std::move(steps);
    function_.first_update = stores;
  }

  Program& program_;
  Function& function_;
  const StepPrices& prices_;
  const std::function<bool(const Step&)>& takes_;
  const std::function<int64_t(const Step&)>& workspace_;
  StepBounds bounds_;
  std::map<int, LiveRange> ranges_;
  std::vector<int64_t> live_;  ///< bytes at each step, with the batches so far
  int64_t peak_ = 0;
  std::vector<bool> movable_;                        ///< by buffer
  std::map<int, std::pair<int, int64_t>> parts_;     ///< common buffer, and byte in it
  std::map<int, std::pair<Members, Step>> batches_;  ///< by place
};

}  // namespace

void batch_products(Program& program, const StepPrices& prices,
                    const std::function<bool(const Step&)>& takes,
                    const std::function<int64_t(const Step&)>& workspace) {
  bool changed = false;
  for (Function* f : all_functions(program.functions))
    changed |= Batcher(program, *f, prices, takes, workspace).run();
  if (changed) drop_unused_buffers(program);
}

}  // namespace tessera
