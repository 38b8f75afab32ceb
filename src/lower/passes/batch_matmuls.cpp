// From the last step up, a matmul joins the open batch of its shape, which stands at the place of
// its last member. Each operand is either the same window of one buffer in all members, or the same
// window of a transient buffer of each, and these become parts of one buffer, or are that already.
// A batch that takes too much memory, or more time than its members, is halved. Reductions to one
// number come after the matmuls, so that they read parts as those wrote them. They join from the
// first step down, as their operands are there, and the sum of their results is built up between.
#include "lower/passes/batch_matmuls.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cost/cost.h"
#include "lower/passes/drop_unused_buffers.h"
#include "lower/passes/fuse_merge.h"
#include "lower/passes/liveness.h"
#include "lower/passes/step_bounds.h"
#include "program/buffer_room.h"
#include "program/specs.h"

namespace tessera {

namespace {

/// Without prices: results with more elements have enough tiles to fill a GPU.
constexpr int64_t kSmallResult = int64_t{1} << 22;
constexpr size_t kMostMembers = 16;

/// What is read, then the results.
template <class AnyStep>
auto& operand(AnyStep& step, size_t x) {
  return x < step.in.size() ? step.in[x] : step.out[x - step.in.size()];
}
size_t operands(const Step& step) { return step.in.size() + step.out.size(); }

/// A matmul without batch dims whose epilogue, if any, has no operand of its own.
bool is_plain_matmul(const Step& step) {
  return step.kernel == KernelKind::matmul && step.in.size() == 2 &&
         is_floating(step.in[0].dtype) && matmul_sizes(step).batch == 1;
}

/// A reduction of one tensor to one number.
bool is_whole_reduction(const Step& step) {
  return step.kernel == KernelKind::reduce && step.in.size() == 1 && step.out.size() == 1 &&
         step.out[0].elements() == 1 && step.in[0].elements() > 1 && step.exprs.empty();
}

/// Equal for the members of a batch.
std::string key_of(const Program& program, const Step& step) {
  std::string key = fmt::format("{} {}", to_string(step.spec), static_cast<int>(step.combiner));
  for (size_t x = 0; x < operands(step); ++x) {
    const View& v = operand(step, x);
    key += fmt::format("|{} {} {} {}+{}{}", static_cast<int>(v.dtype), fmt::join(v.sizes, ","),
                       fmt::join(v.strides, ","), room_of(program.buffers[v.buffer]), v.offset,
                       v.shift.to_string());
  }
  for (const Instr& i : step.pointwise.code)
    key += fmt::format(";{} {} {} {} {} {} {:a}", static_cast<int>(i.code),
                       static_cast<int>(i.dtype), i.a, i.b, i.c, i.slot, i.imm);
  for (const int reg : step.pointwise.outputs) key += fmt::format(">{}", reg);
  return key + fmt::format("!{}", fmt::join(step.unused, ","));
}

using Members = std::vector<int>;  ///< places, first the one where the batch stands

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
    const int first = function_.early, last = function_.first_update - function_.late;
    for (int s = last; s-- > first;) {
      if (is_plain_matmul(at(s))) gather(s);
    }
    close_all();
    for (int s = first; s < last; ++s) {
      if (is_whole_reduction(at(s))) gather(s);
    }
    close_all();
    if (batches_.empty()) return false;
    put_together();
    return true;
  }

 private:
  int count() const { return static_cast<int>(function_.steps.size()); }
  const Step& at(int place) const { return function_.steps[static_cast<size_t>(place)]; }

  int buffer_of(int place, size_t x) const { return operand(at(place), x).buffer; }

  bool all_read(const Members& batch, size_t x) const {
    return x < at(batch[0]).in.size() && buffer_of(batch[0], x) == buffer_of(batch[1], x);
  }
  /// True if operand x of the members is part of a common buffer.
  bool is_part(const Members& batch, size_t x) const {
    return parts_.count(buffer_of(batch[0], x)) != 0;
  }

  /// The members in the order of their parts; empty if operands cannot be parts of common buffers.
  Members in_order(const Members& batch) const {
    Members order = batch;
    std::sort(order.begin(), order.end());
    std::vector<int> parts;
    bool is_sorted = false;
    for (size_t x = 0; x < operands(at(batch[0])); ++x) {
      const bool common = all_read(batch, x), are_parts = !common && is_part(batch, x);
      for (const int m : batch) {
        const int buffer = buffer_of(m, x);
        if (common      ? buffer != buffer_of(batch[0], x)
            : are_parts ? parts_.count(buffer) == 0
                        : !movable_[buffer])
          return {};
        if (!common) parts.push_back(buffer);
      }
      if (!are_parts) continue;
      const auto byte = [&](int m) { return parts_.at(buffer_of(m, x)).second; };
      if (!is_sorted)
        std::sort(order.begin(), order.end(), [&](int m, int n) { return byte(m) < byte(n); });
      is_sorted = true;
      const int64_t room = room_of(program_.buffers[buffer_of(batch[0], x)]);
      for (size_t k = 1; k < order.size(); ++k) {
        const auto &before = parts_.at(buffer_of(order[k - 1], x)),
                   &now = parts_.at(buffer_of(order[k], x));
        if (now.first != before.first || now.second != before.second + room) return {};
      }
    }
    std::sort(parts.begin(), parts.end());
    const bool distinct = std::adjacent_find(parts.begin(), parts.end()) == parts.end();
    return distinct ? order : Members();
  }

  bool accepts(const Members& batch, int place) const {
    const auto [after, before] = bounds_.of(place);
    if (batch.size() == kMostMembers || batch[0] <= after || batch[0] >= before) return false;
    Members more = batch;
    more.push_back(place);
    return !in_order(more).empty();
  }

  Step batch_of(const Members& members) const {
    Step batch = at(members[0]);
    if (auto* const spec = std::get_if<MatmulSpec>(&batch.spec))
      spec->kinds.insert(spec->kinds.begin(), matmul_kinds::kBatch);
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
    if (!is_plain_matmul(one)) return true;
    const MatmulSizes sizes = matmul_sizes(one);
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
      if (!common && is_part(members, x)) {
        const int buffer = parts_.at(buffer_of(members[0], x)).first;
        add({ranges_.at(buffer).last + 1, members[0]}, room_of(program_.buffers[buffer]));
        continue;
      }
      LiveRange whole{members[0], members[0]};
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

  /// Adds a step to the open batch of its shape.
  void gather(int place) {
    std::string key = key_of(program_, at(place));
    // Parts of one buffer: the gradients of all layers' queries, beside those of keys.
    if (const auto part = parts_.find(buffer_of(place, 0)); part != parts_.end())
      key += fmt::format("@{}", part->second.first);
    Members& batch = open_[key];
    if (!batch.empty() && !accepts(batch, place)) close(batch);
    batch.push_back(place);
  }
  void close_all() {
    for (auto& [key, batch] : open_) close(batch);
  }

  /// Makes batches of the members if that pays, and clears them.
  void close(Members& members) {
    const Members batch = std::move(members);
    members.clear();
    if (batch.size() < 2) return;
    const Step step = batch_of(batch);
    const bool ends = !step.pointwise.code.empty() || has_sums(step);
    if (is_plain_matmul(at(batch[0])) && ends && takes_ && !takes_(step)) return;
    const Members order = in_order(batch);  // another batch may have taken operands since
    if (!order.empty() && is_faster(batch, step)) {
      std::vector<int64_t> bytes = live_with(batch);
      const int64_t there = bytes[static_cast<size_t>(batch[0])];
      if (*std::max_element(bytes.begin(), bytes.end()) <= peak_ &&
          there + (workspace_ ? workspace_(step) : 0) <= peak_) {
        live_ = std::move(bytes);
        join(batch, order, step);
        return;
      }
    }
    const auto half = batch.begin() + static_cast<std::ptrdiff_t>(batch.size() / 2);
    for (Members part : {Members(batch.begin(), half), Members(half, batch.end())}) close(part);
  }

  /// Gives each operand its part of a common buffer.
  void join(const Members& members, const Members& order, Step step) {
    for (size_t x = 0; x < operands(step); ++x) {
      if (all_read(members, x)) continue;
      View& v = operand(step, x);
      if (is_part(members, x)) {
        const auto& [buffer, byte] = parts_.at(buffer_of(order[0], x));
        v.buffer = buffer;
        v.offset += byte / size_of(v.dtype);
        ranges_[buffer].last = std::max(ranges_[buffer].last, members[0]);
        continue;
      }
      const int first = v.buffer;
      const int64_t room = room_of(program_.buffers[first]);
      const int common = static_cast<int>(program_.buffers.size());
      Buffer buffer = program_.buffers[first];
      buffer.bytes = room * static_cast<int64_t>(members.size());
      int64_t at_byte = 0;
      LiveRange whole{members[0], members[0]};
      for (const int m : order) {
        const int part = buffer_of(m, x);
        const LiveRange& range = ranges_[part];
        whole = {std::min(whole.first, range.first), std::max(whole.last, range.last)};
        parts_[part] = {common, at_byte};
        movable_[part] = false;
        at_byte += room;
      }
      ranges_[common] = whole;
      program_.buffers.push_back(std::move(buffer));
      v.buffer = common;
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
  std::map<std::string, Members> open_;              ///< by key
  std::map<int, std::pair<Members, Step>> batches_;  ///< by place
};

}  // namespace

void batch_matmuls(Program& program, const StepPrices& prices,
                   const std::function<bool(const Step&)>& takes,
                   const std::function<int64_t(const Step&)>& workspace) {
  bool changed = false;
  for (Function* f : all_functions(program.functions))
    changed |= Batcher(program, *f, prices, takes, workspace).run();
  if (changed) drop_unused_buffers(program);
}

}  // namespace tessera
