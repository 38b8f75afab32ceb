#include "tessera/loops.h"

#include <algorithm>

#include "base/fail.h"
#include "ir/loop_builder.h"
#include "ops/iterations.h"

namespace tessera {

namespace {

void require_carries(const std::vector<Tensor>& want, const std::vector<Tensor>& got,
                     const char* what, Loc at) {
  require_made(what, "an iteration's carry", got, at);
  TESSERA_REQUIRE(want.size() == got.size(), "[{}] an iteration makes {} carries of {} ({})", what,
                  got.size(), want.size(), where(at));
}

/// Copies of the body instead of a loop.
IterationResults unrolled(Graph& g, const Dim& over, const std::vector<Tensor>& carries,
                          const std::vector<Tensor>& sliced, const IterationBody& body,
                          Repeat::Of of, Loc at) {
  std::vector<std::vector<Tensor>> slices, stacked;
  for (const Tensor& x : sliced) slices.push_back(unstack(x, over.name, at));
  IterationResults all{carries, {}, {}};
  const int64_t instance = new_instance(g);
  for (int64_t i = 0; i < over.size; ++i) {
    const RepeatScope copy(g, {over.name, over.size, i, -1, of, instance});
    Iteration iteration{all.carries, {}, constant(g, static_cast<double>(i), DType::int32, {}, at)};
    for (const auto& of : slices) iteration.slices.push_back(of[static_cast<size_t>(i)]);
    IterationResults made = body(iteration);
    require_carries(carries, made.carries, "loop", at);
    stacked.resize(made.stacked.size());
    for (size_t k = 0; k < stacked.size(); ++k) stacked[k].push_back(made.stacked[k]);
    add_iteration(all, std::move(made), i == 0, at);
  }
  for (const auto& list : stacked) all.stacked.push_back(stack(list, over.name, at));
  return all;
}

}  // namespace

IterationResults scan(Graph& g, const Dim& over, const std::vector<Tensor>& carries,
                      const std::vector<Tensor>& sliced, const IterationBody& body,
                      const LoopOptions& options, Loc at) {
  require_function("scan", "the body", body, at);
  require_made("scan", "carry", carries, at);
  TESSERA_REQUIRE(!over.is_bounded,
                  "[scan] dim '{}' is bounded; the number of iterations is fixed ({})", over.name,
                  where(at));
  for (const Tensor& x : sliced) {
    TESSERA_REQUIRE(x.shape().has(over.name) && x.dim(over.name) == over,
                    "[scan] '{}' {} has no dim {}={} to take slices of ({})", x.name(),
                    x.shape().to_string(), over.name, over.size, where(at));
  }
  const Repeat::Of of = options.own_parameters ? Repeat::Of::layer : Repeat::Of::iteration;
  if (options.unroll || is_eager(g)) return unrolled(g, over, carries, sliced, body, of, at);
  const int64_t instance = new_instance(g);
  LoopBuilder loop(g, over);
  Iteration iteration;
  for (const Tensor& x : carries) iteration.carries.push_back(loop.carry(x, at));
  for (const Tensor& x : sliced) iteration.slices.push_back(loop.slice(x, at));
  iteration.index = loop.index(at);
  IterationResults made;
  {
    const RepeatScope repeat(g, {over.name, over.size, 0, loop.number(), of, instance});
    made = body(iteration);
  }
  require_carries(carries, made.carries, "scan", at);
  require_made("scan", "an iteration's stacked tensor", made.stacked, at);
  return results_of(loop.finish(made.carries, made.stacked, made.sums, at), made.carries.size(),
                    made.stacked.size());
}

Tensor repeat(const Dim& layers, Tensor x, const std::function<Tensor(Tensor)>& layer,
              const LoopOptions& options, Loc at) {
  require_function("repeat", "the layer", layer, at);
  LoopOptions own = options;
  own.own_parameters = true;
  const IterationResults result = scan(
      x.graph(), layers, {x}, {},
      [&](const Iteration& iteration) { return IterationResults{{layer(iteration.carries[0])}}; },
      own, at);
  return result.carries[0];
}

namespace {

/// The iteration dim of a loop that the user gave none, with a name that nested loops do not use.
Dim iterations_of(const Graph& g, int64_t most) {
  int depth = 0;
  for (int loop = open_loop(g); loop >= 0; loop = loops_of(g)[loop].parent) ++depth;
  return {depth == 0 ? "_trip" : fmt::format("_trip{}", depth), most};
}

Tensor flag_of(const std::function<Tensor(const std::vector<Tensor>&)>& condition,
               const std::vector<Tensor>& carries, Loc at) {
  const Tensor flag = condition(carries);
  TESSERA_REQUIRE(
      !flag.empty(),
      "[while_loop] the condition is an empty Tensor; it was never assigned a value ({})",
      where(at));
  TESSERA_REQUIRE(flag.shape().rank() == 0 && flag.dtype() == DType::bool_,
                  "[while_loop] the condition is {} {}; it must be a bool scalar ({})",
                  to_string(flag.dtype()), flag.shape().to_string(), where(at));
  return flag;
}

/// An eager graph can read the condition.
IterationResults eager_while(Graph& g,
                             const std::function<Tensor(const std::vector<Tensor>&)>& condition,
                             const IterationBody& body, const std::vector<Tensor>& carries,
                             int64_t most, Loc at) {
  IterationResults all{carries, {}, {}};
  std::vector<std::vector<Tensor>> stacked;
  int64_t i = 0;
  const Dim over = iterations_of(g, most);
  const int64_t instance = new_instance(g);
  const auto iteration = [&](int64_t index) {
    const RepeatScope copy(g, {over.name, most, index, -1, Repeat::Of::iteration, instance});
    return body({all.carries, {}, constant(g, static_cast<double>(index), DType::int32, {}, at)});
  };
  for (; i < most && g.fetch(flag_of(condition, all.carries, at)).at(0) != 0; ++i) {
    IterationResults made = iteration(i);
    require_carries(carries, made.carries, "while_loop", at);
    stacked.resize(made.stacked.size());
    for (size_t k = 0; k < stacked.size(); ++k) stacked[k].push_back(made.stacked[k]);
    add_iteration(all, std::move(made), i == 0, at);
  }
  if (i == 0) {  // what an iteration would make tells the shapes
    const IterationResults made = iteration(0);
    require_carries(carries, made.carries, "while_loop", at);
    for (const Tensor& t : made.stacked) stacked.push_back({zeros_like(t, at)});
    for (const Tensor& t : made.sums) all.sums.push_back(zeros_like(t, at));
  }
  for (auto& list : stacked) {
    while (std::ssize(list) < most)
      list.push_back(constant(g, 0, list[0].dtype(), list[0].shape(), at));
    all.stacked.push_back(stack(list, over.name, at));
  }
  return all;
}

}  // namespace

IterationResults while_loop(const std::function<Tensor(const std::vector<Tensor>&)>& condition,
                            const IterationBody& body, const std::vector<Tensor>& carries,
                            int64_t most, Loc at) {
  TESSERA_REQUIRE(
      !carries.empty() && most >= 1,
      "[while_loop] {} carries and at most {} iterations; there is at least one of both ({})",
      carries.size(), most, where(at));
  require_function("while_loop", "the condition", condition, at);
  require_function("while_loop", "the body", body, at);
  require_made("while_loop", "carry", carries, at);
  Graph& g = carries[0].graph();
  if (is_eager(g)) return eager_while(g, condition, body, carries, most, at);
  const Tensor first = flag_of(condition, carries, at);
  const Dim over = iterations_of(g, most);
  const int64_t instance = new_instance(g);
  LoopBuilder loop(g, over);
  Iteration iteration;
  for (const Tensor& x : carries) iteration.carries.push_back(loop.carry(x, at));
  const Tensor go = loop.carry(first, at);
  loop.condition(go);
  iteration.index = loop.index(at);
  IterationResults made;
  {
    const RepeatScope repeat(g,
                             {over.name, most, 0, loop.number(), Repeat::Of::iteration, instance});
    made = body(iteration);
  }
  require_carries(carries, made.carries, "while_loop", at);
  require_made("while_loop", "an iteration's stacked tensor", made.stacked, at);
  std::vector<Tensor> next = made.carries;
  next.push_back(flag_of(condition, made.carries, at));
  IterationResults result =
      results_of(loop.finish(next, made.stacked, made.sums, at), next.size(), made.stacked.size());
  result.carries.pop_back();
  return result;
}

namespace {

/// The results of `branch` if `flag` is true, else zeros: the sums of a loop with at most one
/// iteration.
std::vector<Tensor> run_if(Tensor flag, const std::function<std::vector<Tensor>()>& branch,
                           Loc at) {
  Graph& g = flag.graph();
  LoopBuilder loop(g, iterations_of(g, 1));
  const Tensor go = loop.carry(flag, at);
  loop.condition(go);
  std::vector<Tensor> made = branch();
  for (Tensor& t : made) {  // bools are not summed
    if (t.dtype() == DType::bool_) t = cast(t, DType::uint8, at);
  }
  std::vector<Tensor> results = loop.finish({go}, {}, made, at);
  results.erase(results.begin());
  return results;
}

}  // namespace

std::vector<Tensor> cond(Tensor predicate, const std::function<std::vector<Tensor>()>& then,
                         const std::function<std::vector<Tensor>()>& otherwise, Loc at) {
  TESSERA_REQUIRE(!predicate.empty(), "[cond] the predicate is an empty Tensor ({})", where(at));
  require_function("cond", "what runs if it is true", then, at);
  require_function("cond", "what runs otherwise", otherwise, at);
  TESSERA_REQUIRE(predicate.shape().rank() == 0 && predicate.dtype() == DType::bool_,
                  "[cond] the predicate is {} {}; it must be a bool scalar ({})",
                  to_string(predicate.dtype()), predicate.shape().to_string(), where(at));
  Graph& g = predicate.graph();
  auto results_of_branch = [&](const std::function<std::vector<Tensor>()>& branch) {
    std::vector<Tensor> made = branch();
    require_made("cond", "a branch's result", made, at);
    return made;
  };
  if (is_eager(g)) return results_of_branch(g.fetch(predicate).at(0) != 0 ? then : otherwise);
  std::vector<DType> dtypes;
  auto recorded = [&](const std::function<std::vector<Tensor>()>& branch) {
    return [&] {
      std::vector<Tensor> made = results_of_branch(branch);
      dtypes.clear();
      for (const Tensor& t : made) dtypes.push_back(t.dtype());
      return made;
    };
  };
  const std::vector<Tensor> a = run_if(predicate, recorded(then), at);
  const std::vector<DType> first = dtypes;
  const std::vector<Tensor> b = run_if(logical_not(predicate, at), recorded(otherwise), at);
  TESSERA_REQUIRE(a.size() == b.size(), "[cond] one branch makes {} tensors and the other {} ({})",
                  a.size(), b.size(), where(at));
  std::vector<Tensor> results;
  for (size_t i = 0; i < a.size(); ++i) {
    TESSERA_REQUIRE(
        a[i].shape() == b[i].shape() && first[i] == dtypes[i],
        "[cond] result {} is {} {} in one branch and {} {} in the other; they must agree{} ({})", i,
        to_string(first[i]), a[i].shape().to_string(), to_string(dtypes[i]),
        b[i].shape().to_string(),
        a[i].shape() != b[i].shape() && a[i].shape().has_same_dims(b[i].shape())
            ? " in the order of dims too, use transpose()"
            : "",
        where(at));
    results.push_back(where(predicate, a[i], b[i], at));
    if (first[i] == DType::bool_) results.back() = cast(results.back(), DType::bool_, at);
  }
  return results;
}

}  // namespace tessera
