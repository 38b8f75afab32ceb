#include "kernels/cpu/attention_plan.h"

#include <algorithm>

namespace tessera::cpu {

namespace {

constexpr int64_t kBlockElements = 32768;  // logits per block
constexpr int64_t kLeastRows = 8, kMostRows = 64;
constexpr int64_t kManyQueries = 64;  // with so many, a copy of the keys pays
constexpr size_t kSegmentInputs = 2;
constexpr int64_t kBitsOfCounters = 8;  // that a row does not use of its first and last counter

/// With a causal mask half of a block is wasted, so blocks are smaller.
int64_t most_causal_rows(int64_t memory) { return memory < 512 ? 16 : 32; }

}  // namespace

AttentionPlan::AttentionPlan(const Step& step, const AttentionStep& attention)
    : length_dim(static_cast<int64_t>(attention.length_dim)),
      memory_dim(static_cast<int64_t>(attention.memory_dim)),
      key_dim(static_cast<int64_t>(attention.key_dim)),
      value_dim(static_cast<int64_t>(attention.value_dim)),
      causal(attention.mask.causal),
      backward(attention.backward),
      starts(attention.start_inputs),
      length(attention.mask.queries),
      memory(attention.mask.keys),
      mask(attention.mask),
      soft_cap(attention.soft_cap),
      segments(attention.has_segments),
      slopes(attention.has_slopes),
      entries_dim(attention.entries_dim),
      dropout(attention.dropout) {
  const View& q = step.in.at(0);
  width = q.sizes[key_dim];
  value_width = step.in.at(2).sizes[value_dim];
  narrow = is_narrow(q.dtype);
  most_rows = causal ? most_causal_rows(memory) : kMostRows;
  rows = std::clamp(kBlockElements / std::max<int64_t>(memory, 1), kLeastRows, most_rows);
  rows = std::min(rows, std::max<int64_t>(length, 1));
  const int64_t element = q.dtype == DType::float64 ? 8 : 4;
  auto reserve = [&](int64_t elements) {
    const int64_t at = workspace;
    workspace += (elements * element + 63) / 64 * 64;
    return at;
  };
  const bool ordered = step.order.is_strict();  // ordered_attention.cpp has places of its own
  capacity = rows * whole_vectors(memory);
  if (!ordered) {
    logits = reserve(capacity);
    if (backward) back = reserve(capacity);
    if (soft_cap > 0) squashed = reserve(whole_vectors(memory));
  }
  if (segments) spans = reserve(2 * length);
  const int64_t each = 8 / element;
  if (entries_dim >= 0) {
    entries = step.in.at(attention.entries()).sizes[static_cast<size_t>(entries_dim)];
    if (!ordered) biases = reserve(entries);
    if (backward) sums = reserve(entries * each);
  }
  if (dropout > 0) {
    bits = reserve((memory + kBitsOfCounters) * each);
    kept = reserve(memory);
  }
  list_operands();
  if (ordered) return;
  for (size_t i = 0; i < operands.size(); ++i) matrices.push_back({i});
  choose_forms();
  for (Used& m : matrices) {
    if (!is_matrix(m.operand) || !is_copied(step, m)) continue;
    m.copy = reserve(width_of(m.operand) *
                     (m.form == Form::columns ? column_stride(m) : positions(m.operand)));
  }
}

void AttentionPlan::list_operands() {
  using enum Operand;
  operands = {by_length, by_memory, by_memory};
  if (backward) operands.insert(operands.end(), {by_length, unused, row, row});
  operands.insert(operands.end(), starts, start);
  if (slopes) operands.push_back(start);
  if (entries_dim >= 0) operands.push_back(by_distance);
  if (segments) operands.insert(operands.end(), kSegmentInputs, ids);
  first_result = operands.size();
  operands.push_back(by_length);
  if (!backward) {
    operands.push_back(row);
    return;
  }
  operands.insert(operands.end(), {by_memory, by_memory});
  if (entries_dim >= 0) operands.push_back(by_distance);
}

/// How an operand is read or written: query and result in rows as they are, keys transposed for the
/// logits. The gradient also reads keys in rows; the last matrix is the transposed keys.
void AttentionPlan::choose_forms() {
  using enum Form;
  if (!backward) {
    matrices[1].form = columns;
    matrices[2].form = rows_of_many;
    return;
  }
  for (const size_t i : {size_t{0}, size_t{1}, size_t{3}, first_result + 1, first_result + 2})
    matrices[i].form = rows_of_many;
  matrices[2].form = columns;
  matrices.push_back({1, columns});
}

bool AttentionPlan::is_copied(const Step& step, const Used& m) const {
  const size_t i = m.operand;
  const View& v = i < step.in.size() ? step.in[i] : step.out[i - step.in.size()];
  const int64_t n = positions(i), columns = width_of(i), column = v.strides[column_dim(i)],
                row = v.strides[position_dim(i)];
  const bool by_rows = column == 1 && (row >= columns || n == 1),
             by_columns = row == 1 && (column >= n || columns == 1);
  if (narrow || !(by_rows || by_columns)) return true;
  if (m.form == Form::any || length < kManyQueries) return false;
  return m.form == Form::columns ? !by_columns : !by_rows || row > columns;
}

}  // namespace tessera::cpu
