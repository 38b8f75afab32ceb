// The memory plan of real models (that it is what is allocated shows programs/steady): every view
// lies inside its buffer, the arenas are used to their last byte, and no step reads bytes that
// another buffer has taken over.
#include <algorithm>
#include <map>

#include "base/fail.h"
#include "lower/passes/fuse_merge.h"
#include "program/windows.h"
#include "support/catch.h"
#include "support/gpt_run.h"
#include "support/program_run.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// The bytes of its buffer that a view covers on the rank at `coordinates`: [first, last).
std::pair<int64_t, int64_t> reach(const View& view, std::span<const int> coordinates,
                                  const std::vector<int64_t>& scalars) {
  int64_t first = view.offset + view.shift.eval(coordinates, scalars.data()), last = first;
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    if (view.sizes[d] == 0) return {0, 0};
    (view.strides[d] < 0 ? first : last) += (view.sizes[d] - 1) * view.strides[d];
  }
  return {first * size_of(view.dtype), (last + 1) * size_of(view.dtype)};
}

/// Who owns each 64 bytes of the transient arena while a function runs.
class Owners {
 public:
  explicit Owners(const Program& program)
      : program_(program), owner_(static_cast<size_t>(program.transient_bytes / 64), -1) {}

  void take(int buffer) {
    each(buffer, [&](int& owner) { owner = buffer; });
  }
  bool has(int buffer) {
    bool all = true;
    each(buffer, [&](const int& owner) { all = all && owner == buffer; });
    return all;
  }
  /// Bytes that have ever had an owner.
  int64_t used() const { return used_; }

 private:
  template <class Visit>
  void each(int buffer, Visit visit) {
    const Buffer& b = program_.buffers[buffer];
    if (b.arena != ArenaKind::transient) return;
    const int64_t end = b.offset + std::max<int64_t>((b.bytes + 63) / 64 * 64, 64);
    used_ = std::max(used_, end);
    for (int64_t at = b.offset / 64; at < end / 64; ++at) visit(owner_.at(static_cast<size_t>(at)));
  }

  const Program& program_;
  std::vector<int> owner_;
  int64_t used_ = 0;
};

/// Whether the step, which works by element, may overwrite this operand.
bool may_overwrite(const Step& step, const View& operand) {
  return is_pointwise(step) && std::any_of(step.out.begin(), step.out.end(), [&](View out) {
           out.buffer = operand.buffer;
           return same_window(out, operand);
         });
}

/// Runs over the steps as the executor does; the bytes of the transient arena that were used.
int64_t follow(const Program& program, const Function& function) {
  Owners owners(program);
  std::map<int, const Step*> in_flight;
  const auto intact = [&](const Step& step) {
    for (const View& v : step.in) CHECK((owners.has(v.buffer) || may_overwrite(step, v)));
    for (const View& v : step.out) CHECK(owners.has(v.buffer));
  };
  std::vector<char> written(program.buffers.size(), 0);
  for (const Step& step : function.steps) {
    INFO(to_string(program, step));
    if (step.kind == StepKind::wait) {
      intact(*in_flight.at(step.number));  // nobody may have taken what it still uses
      in_flight.erase(step.number);
      continue;
    }
    for (const View& v : step.in) CHECK(owners.has(v.buffer));
    for (const View& v : step.out) {
      if (written[v.buffer]) CHECK(owners.has(v.buffer));  // parts of it are written one by one
      owners.take(v.buffer);
      written[v.buffer] = 1;
    }
    if (step.workspace >= 0) owners.take(step.workspace);
    intact(step);
    if (step.kind == StepKind::collective) in_flight[step.number] = &step;
    for (const auto& [number, open] : in_flight) intact(*open);
  }
  CHECK(in_flight.empty());
  for (int port : function.outputs) CHECK(owners.has(program.ports[port].view.buffer));
  return owners.used();
}

void check_views(const Program& program) {
  int ranks = 1;
  for (int size : program.axis_sizes) ranks *= size;
  const std::vector<int64_t> scalars(program.scalars.size(), 0);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<int> at(program.axis_sizes.size());
    for (size_t a = at.size(), rest = static_cast<size_t>(rank); a-- > 0;) {
      at[a] = static_cast<int>(rest) % program.axis_sizes[a];
      rest /= static_cast<size_t>(program.axis_sizes[a]);
    }
    for (const Function& f : program.functions) {
      for (const Step& step : f.steps) {
        for (const auto* views : {&step.in, &step.out}) {
          for (const View& v : *views) {
            const auto [first, last] = reach(v, at, scalars);
            const bool inside = first >= 0 && last <= program.buffers[v.buffer].bytes;
            if (!inside) FAIL_CHECK(fmt::format("rank {}: {}", rank, to_string(program, step)));
          }
        }
      }
    }
  }
}

void check_plan(const Program& program) {
  check_views(program);
  int64_t persistent = 0, transient = 0;
  for (const Buffer& b : program.buffers) {
    if (b.arena == ArenaKind::persistent) {
      CHECK(b.offset == persistent);
      persistent += std::max<int64_t>((b.bytes + 63) / 64 * 64, 64);
    }
  }
  for (const Function& f : program.functions) {
    INFO(f.name);
    transient = std::max(transient, follow(program, f));
  }
  CHECK(persistent == program.persistent_bytes);
  CHECK(transient == program.transient_bytes);
}

TEST_CASE("the memory plan of gpt is sound and tight", "[memory]") {
  for (const char* layout :
       {"", "batch:a;heads,ff,vocab:b", "length:a;d_model:b", "batch:a+b;@params d_model:a",
        "batch:a;@/*norm*/ length:b;ff:b;@state d_model:a", "vocab,ff:a+b"}) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      INFO(layout << " " << to_string(dtype));
      Graph g;
      const nn::Model model = nn::gpt(g, small_gpt(dtype));
      MinimizeOptions options;
      options.clip = 1;
      minimize(model.loss, constant(g, 0.01), adam(), options);
      check_plan(lower_for_cpu(g, "a:2;b:2", layout,
                               {{"train", {model.loss}, true}, {"eval", {model.loss}, false}}));
    }
  }
}

TEST_CASE("a gradient of logits lies where the logits lay", "[memory]") {
  Graph g;
  const Dim batch("batch", 8), features("features", 4), classes("classes", 512);
  Tensor x = g.input("x", {batch, features}, DType::float32),
         labels = g.input("labels", {batch}, DType::int32),
         w = g.parameter("w", {features, classes}, nn::zeros());
  Tensor logits = einsum({x, w}, {batch, classes});
  Tensor loss = mean_all(cross_entropy(logits, labels, "classes"));
  minimize(loss, constant(g, 0.1), sgd());
  const Program program = lower_for_cpu(g, "a:1", "", {{"train", {loss}, true}});
  check_plan(program);
  const int64_t of_logits = 8 * 512 * 4, of_gradient = 4 * 512 * 4;
  INFO(to_string(program));
  CHECK(program.transient_bytes > of_logits);
  CHECK(program.transient_bytes < of_logits + of_gradient + 4096);
}

TEST_CASE("the memory that a session reports is that of its plan", "[memory]") {
  Cluster ranks = Cluster::threads(2);
  Graph g;
  const nn::Model model = nn::gpt(g, small_gpt(DType::float32));
  minimize(model.loss, constant(g, 0.01), adam());
  const Program plan = lower_for_cpu(g, "a:2", "batch:a", {{"train", {model.loss}, true}});
  Session session(g, ranks,
                  {Mesh::parse("a:2"), Layout::parse("batch:a"), {{"train", {model.loss}, true}}});
  CHECK(session.program().hash() == hash(plan));
  CHECK(session.program().persistent_bytes() == plan.persistent_bytes);
  CHECK(session.program().transient_bytes() == plan.transient_bytes);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
