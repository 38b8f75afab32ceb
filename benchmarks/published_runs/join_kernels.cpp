// Turns a Program of unfused steps into the kernels of a framework. A run of neighbouring
// memory-bound steps that belong together is one kernel: it reads each outside value once and
// writes what is read outside. Its arithmetic is hidden behind that. Renames and slices are views.
// What depends on no tensor (positions, masks, random bits) is recomputed where it is read.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "benchmarks/published_runs/runs.h"
#include "tessera/op.h"

namespace tessera::runs {

namespace {

bool is_memory_bound(const Step& step) {
  if (step.kind != StepKind::compute) return false;
  switch (step.kernel) {
    case KernelKind::matmul:
    case KernelKind::attention:
    case KernelKind::attention_grad:
    case KernelKind::attention_part:
    case KernelKind::gather:
    case KernelKind::scatter_add:
      return false;
    default:
      return true;
  }
}

/// The node that a gradient belongs to: "layer_norm" for "block0.layer_norm_1.grad.mul"; "" if it
/// is no gradient.
std::string differentiated(const std::string& name) {
  const size_t end = name.find(".grad");
  if (end == std::string::npos) return "";
  const size_t dot = name.rfind('.', end - 1);
  std::string node = name.substr(dot == std::string::npos ? 0 : dot + 1, end - dot - 1);
  const size_t digits = node.find_last_not_of("0123456789");
  return digits != std::string::npos && node[digits] == '_' ? node.substr(0, digits) : node;
}

bool is_composite(const std::string& name) {
  const auto& ops = all_ops();
  return std::any_of(ops.begin(), ops.end(),
                     [&](const Op* op) { return op->body != nullptr && op->name == name; });
}

/// Neighbouring steps with the same key are one kernel.
std::string key_of(const Step& step, Fusion fusion) {
  const std::string& name = step.origin.name;
  if (fusion == Fusion::compiled || name.find("attention.core") != std::string::npos) return "run";
  const std::string node = differentiated(name);
  if (fusion == Fusion::eager) return node.empty() ? "alone" : name.substr(0, name.find(".grad"));
  if (!node.empty() && is_composite(node)) return name.substr(0, name.find(".grad"));
  return is_composite(name_of(step)) ? name : "run";
}

/// Renames and slices copy nothing: whoever reads them reads the original.
bool is_view(const Step& step) {
  if (step.kernel == KernelKind::window && differentiated(step.origin.name).empty())
    return step.out[0].elements() < step.in[0].elements();
  return info_of(step.kernel).is_copy && step.origin.name.find("reshape") != std::string::npos;
}

/// Who reads what a rename of kWhole wrote reads what it read.
void forward_renames(std::vector<Step>& steps) {
  std::map<int, int> sources;  // by buffer written
  for (const Step& step : steps) {
    if (!is_view(step) || step.origin.name.find(kWhole) == std::string::npos) continue;
    const auto source = sources.find(step.in[0].buffer);
    sources[step.out[0].buffer] = source == sources.end() ? step.in[0].buffer : source->second;
  }
  for (Step& step : steps) {
    if (is_view(step)) continue;
    for (View& v : step.in) {
      const auto source = sources.find(v.buffer);
      if (source != sources.end()) v.buffer = source->second;
    }
  }
}

/// By buffer: true if it depends on no tensor.
std::vector<bool> find_free(const Program& program, const std::vector<Step>& steps) {
  std::vector<bool> free(program.buffers.size(), false);
  for (const Step& step : steps) {
    if (step.kind != StepKind::compute) continue;
    const bool made =
        std::all_of(step.in.begin(), step.in.end(), [&](const View& v) { return free[v.buffer]; });
    for (const View& v : step.out) free[v.buffer] = made;
  }
  return free;
}

class Joiner {
 public:
  Joiner(const std::vector<Step>& steps, const std::vector<bool>& free)
      : steps_(steps), free_(free), readers_(free.size()) {
    for (size_t s = 0; s < steps.size(); ++s) {
      for (const View& v : steps[s].in) readers_[v.buffer].push_back(s);
    }
  }

  /// Steps [first, last) as one `pointwise` step without instructions, whose operands are the
  /// values read from outside and written for outside.
  Step join(size_t first, size_t last) const {
    Step joined;
    joined.kernel = KernelKind::pointwise;
    joined.origin = steps_[first].origin;
    std::set<int> inside, seen;
    for (size_t s = first; s < last; ++s) {
      for (const View& v : steps_[s].in) {
        if (!free_[v.buffer] && !inside.count(v.buffer) && seen.insert(v.buffer).second)
          joined.in.push_back(v);
      }
      for (const View& v : steps_[s].out) inside.insert(v.buffer);
    }
    for (size_t s = first; s < last; ++s) {
      for (const View& v : steps_[s].out) {
        const auto& readers = readers_[v.buffer];
        const bool kept =
            readers.empty() || std::any_of(readers.begin(), readers.end(),
                                           [&](size_t r) { return r < first || r >= last; });
        if (kept && !free_[v.buffer]) joined.out.push_back(v);
      }
    }
    return joined;
  }

 private:
  const std::vector<Step>& steps_;
  const std::vector<bool>& free_;
  std::vector<std::vector<size_t>> readers_;  ///< by buffer: steps
};

/// Reads an operand `reads` times and writes `bytes` for each element.
Step conversion(const View& operand, int reads, double bytes) {
  Step cast;
  cast.kernel = KernelKind::pointwise;
  cast.in.assign(static_cast<size_t>(reads), operand);
  View out;
  out.buffer = operand.buffer;
  out.dtype = DType::uint8;
  out.sizes = {std::llround(bytes * static_cast<double>(elements_stored(operand)))};
  out.strides = {1};
  cast.out = {out};
  return cast;
}

Step copy_of(const View& view) {
  Step copy;
  copy.kernel = KernelKind::pointwise;
  copy.in = {view};
  copy.out = {view};
  return copy;
}

/// The rate of TorchInductor's kernels that convert and transpose, relative to those that convert:
/// 1.4 and 2.2 TB/s on H100 (PyTorch, issue 133242).
constexpr double kTransposed = 1.4 / 2.2;

constexpr int kHidden = 1 << 20;  ///< added to the number of a collective: its hidden part

/// A collective of fewer elements.
void resize(Step& step, int64_t elements) {
  for (std::vector<View>* views : {&step.in, &step.out}) {
    for (View& v : *views) v.sizes = {elements}, v.strides = {1};
  }
}

}  // namespace

void join_kernels(const Program& program, Fusion fusion, Function& function) {
  forward_renames(function.steps);
  std::erase_if(function.steps, is_view);
  const std::vector<bool> free = find_free(program, function.steps);
  std::erase_if(function.steps, [&](const Step& step) {
    return step.kind == StepKind::compute && !step.out.empty() && free[step.out[0].buffer];
  });
  const Joiner joiner(function.steps, free);
  std::vector<Step> joined;
  for (size_t s = 0; s < function.steps.size();) {
    if (!is_memory_bound(function.steps[s])) {
      joined.push_back(function.steps[s++]);
      continue;
    }
    const std::string key = key_of(function.steps[s], fusion);
    size_t end = s + 1;
    while (key != "alone" && end < function.steps.size() && is_memory_bound(function.steps[end]) &&
           key_of(function.steps[end], fusion) == key)
      ++end;
    joined.push_back(joiner.join(s, end));
    s = end;
  }
  function.steps = std::move(joined);
}

void quantize(const Precision& precision, const Framework& framework, const std::set<int>& weights,
              int axis, Function& function) {
  if (precision.reads == 0) return;
  std::set<int> operands, scaled;  // buffers: of products; written by kernels that find their scale
  for (const Step& step : function.steps) {
    if (step.kernel == KernelKind::matmul) {
      for (const View& v : step.in) operands.insert(v.buffer);
    }
    if (!is_memory_bound(step) || framework.fusion == Fusion::eager) continue;
    for (const View& v : step.out) scaled.insert(v.buffer);
  }
  const bool keeps = framework.keeps_converted;
  std::set<std::pair<int, int>> converted;  // buffer, use
  std::vector<Step> steps;
  const auto convert = [&](const View& operand, bool transposed = false) {
    // A kernel that writes rows finds the scale of a row, or of all, but not those of columns.
    const bool has_scale = scaled.contains(operand.buffer) && !(transposed && precision.rescales);
    steps.push_back(conversion(operand, std::max(1, precision.reads - (has_scale ? 1 : 0)),
                               (keeps ? 2 : 1) * precision.bytes));
    if (!transposed || framework.fusion != Fusion::compiled) return;
    View slower = steps.back().out[0];
    slower.sizes[0] = std::llround((1 / kTransposed - 1) * (2 + precision.bytes) *
                                   static_cast<double>(elements_stored(operand)));
    steps.back().in.push_back(slower);
  };
  for (Step& step : function.steps) {
    const bool is_backward = !keeps && !differentiated(step.origin.name).empty();
    // Gradients of weights sum over tokens, so their operands are transposed, and scales of rows
    // are those of columns.
    const bool sums_tokens = is_backward && step.kernel == KernelKind::matmul &&
                             std::none_of(step.in.begin(), step.in.end(), [&](const View& v) {
                               return weights.contains(v.buffer);
                             });
    const int use = (is_backward ? 1 : 0) + (sums_tokens && precision.rescales ? 1 : 0);
    if (is_collective(step, CollectiveKind::all_gather) && step.axes == std::vector<int>{axis} &&
        (keeps || precision.tensorwise) && operands.contains(step.out[0].buffer) &&
        size_of(step.out[0].dtype) == 2) {
      convert(step.in[0]);
      converted.insert({{step.out[0].buffer, 0}, {step.out[0].buffer, 1}});
      const auto elements = static_cast<double>(step.out[0].elements());
      resize(step, std::llround(elements * precision.bytes / 2));
    }
    for (const View& operand : step.in) {
      if (step.kernel != KernelKind::matmul || size_of(operand.dtype) != 2) continue;
      if (keeps && weights.contains(operand.buffer)) continue;
      if (converted.insert({operand.buffer, use}).second) convert(operand, sums_tokens);
    }
    const bool rescaled = precision.rescales && step.kernel == KernelKind::matmul &&
                          !differentiated(step.origin.name).empty();
    steps.push_back(std::move(step));
    if (rescaled) steps.push_back(copy_of(steps.back().out[0]));
  }
  function.steps = std::move(steps);
}

void copy_gathered(int axis, Function& function) {
  std::vector<Step> steps;
  std::map<int, View> gathered;  // by number
  for (Step& step : function.steps) {
    const bool is_over = step.kind == StepKind::collective && step.axes == std::vector<int>{axis};
    if (is_over && is_collective(step, CollectiveKind::all_gather))
      gathered[step.number] = step.out[0];
    if (is_over && is_collective(step, CollectiveKind::reduce_scatter))
      steps.push_back(copy_of(step.in[0]));
    const bool arrives = step.kind == StepKind::wait && gathered.contains(step.number);
    const int number = step.number;
    steps.push_back(std::move(step));
    if (arrives) steps.push_back(copy_of(gathered[number]));
  }
  function.steps = std::move(steps);
}

void overlap_products(int axis, int64_t ranks, Function& function) {
  std::vector<Step>& steps = function.steps;
  std::map<size_t, std::vector<Step>> before, behind;  // by product
  std::set<size_t> replaced;
  for (size_t c = 0; c < steps.size(); ++c) {
    if (steps[c].kind != StepKind::collective || steps[c].axes != std::vector<int>{axis}) continue;
    size_t wait = c;
    while (wait < steps.size() &&
           (steps[wait].kind != StepKind::wait || steps[wait].number != steps[c].number))
      ++wait;
    const bool gathers = is_collective(steps[c], CollectiveKind::all_gather);
    size_t product = gathers ? wait : c;
    while (product < steps.size() && steps[product].kernel != KernelKind::matmul)
      product += gathers ? 1 : -1;
    if (wait >= steps.size() || product >= steps.size()) continue;
    Step hidden = steps[c], done = steps[wait];
    hidden.number += kHidden, done.number += kHidden;
    if (gathers) {
      replaced.insert({c, wait});
    } else {
      const int64_t elements = counted_operand(steps[c]).elements();
      resize(hidden, elements - elements / ranks);
      resize(steps[c], elements / ranks);
    }
    before[product].push_back(std::move(hidden));
    behind[product].push_back(std::move(done));
  }
  std::vector<Step> result;
  for (size_t s = 0; s < steps.size(); ++s) {
    for (Step& step : before[s]) result.push_back(std::move(step));
    if (!replaced.contains(s)) result.push_back(std::move(steps[s]));
    for (Step& step : behind[s]) result.push_back(std::move(step));
  }
  steps = std::move(result);
}

bool is_conversion(const Step& step) {
  return step.kernel == KernelKind::pointwise && !step.out.empty() &&
         step.out[0].dtype == DType::uint8;
}

void drop_fused(Function& function) {
  std::set<int> made;  // by pointwise kernels
  std::erase_if(function.steps, [&](const Step& step) {
    if (is_conversion(step)) return made.contains(step.in[0].buffer);
    if (!is_memory_bound(step)) return false;
    for (const View& v : step.out) made.insert(v.buffer);
    return true;
  });
}

double drop_kept(Function& function) {
  std::map<std::string, int> products;  // of a block, so far
  std::set<int> dropped;                // numbers of collectives
  double bytes = 0;
  std::erase_if(function.steps, [&](const Step& step) {
    if (step.kind == StepKind::wait) return dropped.contains(step.number);
    const std::string& name = step.origin.name;
    const bool is_attention = name.find("attention.core") != std::string::npos;
    bool is_kept = is_attention;
    if (step.kernel == KernelKind::matmul && !is_attention)
      is_kept = products[name.substr(0, name.find('.'))]++ % 2 == 0;
    if (step.kind == StepKind::collective && step.collective != CollectiveKind::all_gather)
      is_kept = dropped.insert(step.number).second;
    if (!is_kept || is_memory_bound(step) || step.kind != StepKind::compute) return is_kept;
    for (const View& v : step.out)
      bytes += static_cast<double>(elements_stored(v) * size_of(v.dtype));
    return true;
  });
  return bytes;
}

void keep_scopes(const std::vector<std::string>& scopes, Function& function) {
  std::erase_if(function.steps, [&](const Step& step) {
    const auto is_of = [&](const std::string& scope) {
      return step.origin.name.find("." + scope + ".") != std::string::npos;
    };
    return step.kind != StepKind::compute || std::none_of(scopes.begin(), scopes.end(), is_of);
  });
}

}  // namespace tessera::runs
