// No number of threads changes a bit: of contractions and convolutions of drawn sizes, whose sums a
// library adds in an order of its own, and of the state of a model after some steps.
#include <array>

#include "kernels/cpu/blas.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/drawn_convs.h"
#include "program/specs.h"
#include "tessera/tessera.h"

namespace tessera::test {
namespace TESSERA_FILE {

constexpr int kThreads[] = {2, 3, 4, 8};

/// Fractions: the order of their sums shows in the bits.
template <class T>
void make_fractions(std::vector<T>& elements) {
  for (size_t i = 0; i < elements.size(); ++i)
    elements[i] =
        stored<T>(static_cast<float>(load_as(elements[i])) + 0.1f * static_cast<float>(i % 7));
}

template <class T>
void check_threads(const Step& step, DType dtype) {
  const KernelEntry& entry = *find_cpu_kernel(step.kernel);
  const auto run_by = [&](int threads) {
    ThreadPool pool(threads);
    return run_as<T>(
        step, dtype, workspace_with_threads(entry, with_dtype(step, dtype), threads, 0),
        [&](const KernelArgs& args) { return bind_with_threads(entry, args, pool, 0); },
        make_fractions<T>);
  };
  const std::vector<T> one = run_by(1);
  for (const int threads : kThreads) {
    const std::vector<T> other = run_by(threads);
    INFO(threads << " threads");
    for (size_t i = 0; i < one.size(); ++i) {
      INFO("element " << i);
      REQUIRE(load_as(other[i]) == load_as(one[i]));
    }
  }
}

void check_threads(const Step& step) {
  check_threads<float>(step, DType::float32);
  check_threads<BFloat16>(step, DType::bfloat16);
}

/// Dims of every kind in any order of memory.
Step drawn_contraction(Draw& draw) {
  using namespace matmul_kinds;
  std::vector<DimKind> kinds;
  Numbers sizes;
  const auto add = [&](DimKind kind, Numbers from) {
    kinds.push_back(kind);
    sizes.push_back(from[static_cast<size_t>(draw(0, static_cast<int64_t>(from.size()) - 1))]);
  };
  if (draw.one_in(3)) add(kBatch, {2, 3, 5});
  add(kRow, {3, 40, 128, 200, 520});
  if (draw.one_in(3)) add(kRow, {2, 3, 8});
  add(kColumn, {5, 17, 96, 130, 300, 513});
  add(kSum, {20, 64, 70, 300});
  if (draw.one_in(4)) add(kSum, {2, 5});
  Step step;
  step.kernel = KernelKind::matmul;
  step.spec = MatmulSpec{kinds};
  const int64_t missing[3] = {kColumn, kRow, kSum};
  for (const int64_t kind : missing) {
    std::vector<size_t> order(kinds.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (draw.one_in(2)) draw.shuffle(order);
    View view;
    view.sizes = sizes, view.strides = Numbers(kinds.size(), 0);
    int64_t stride = 1;
    for (size_t i = order.size(); i-- > 0;) {
      const size_t d = order[i];
      if (kinds[d] == kind) {
        view.sizes[d] = 1;
      } else {
        view.strides[d] = stride;
        stride *= sizes[d];
      }
    }
    (kind == kSum ? step.out : step.in).push_back(view);
  }
  return step;
}

/// Channels of the sizes that models have.
Step drawn_convolution(Draw& draw) {
  const auto channels = [&] {
    return std::array{3, 8, 24, 64, 96}[static_cast<size_t>(draw(0, 4))];
  };
  DrawnConv conv({kImages, kInputs, kOutputs}, {draw(1, 5), channels(), channels()});
  const int64_t window = draw(1, 3), size = draw(8, 20);
  for (int s = 0; s < 2; ++s) conv.add({size, size, window, 1, 1, window / 2}, false, draw);
  return conv.step(draw);
}

TEST_CASE("no number of threads changes a bit of a contraction", "[kernels]") {
  Draw draw(1);
  for (int i = 0; i < 60; ++i) {
    const Step step = drawn_contraction(draw);
    INFO("contraction " << i << ": " << step.out[0].sizes.size() << " dims");
    check_threads(step);
  }
}

TEST_CASE("no number of threads changes a bit of a convolution", "[kernels][conv]") {
  Draw draw(2);
  for (int i = 0; i < 60; ++i) {
    const Step step = drawn_convolution(draw);
    INFO("convolution " << i << ", result " << step.as<ConvSpec>().result);
    check_threads(step);
  }
}

/// All parameters after some steps of a gpt that is large enough for several threads.
std::map<std::string, Array> parameters_after_steps(int threads) {
  nn::GptOptions options;
  options.layers = 2, options.length = 64, options.batch = 16;
  Graph g;
  const nn::Model model = nn::gpt(g, options);
  Tensor lr = g.input("lr", {}, DType::float32);
  minimize(model.loss, lr, adam({}), {});
  Cluster cluster = Cluster::threads(1);
  Session session(
      g, cluster,
      CompileOptions{
          Mesh::parse("data:1"), Layout::parse(""), {{"train", {model.loss}, true}}, 1, threads});
  Array rate(DType::float32, {}, {});
  rate.data<float>()[0] = 1e-3f;
  session.feed("lr", rate);
  for (const Tensor& input : model.inputs) {
    Array tokens(DType::int32, {"batch", "length"}, {options.batch, options.length});
    for (int64_t i = 0; i < tokens.elements(); ++i)
      tokens.data<int32_t>()[i] = static_cast<int32_t>(i * 7919 % 251);
    session.feed(input.name(), tokens);
  }
  for (int step = 0; step < 4; ++step) session.run("train");
  std::map<std::string, Array> parameters;
  for (const Tensor& p : g.parameters()) parameters.emplace(p.name(), session.fetch(p.name()));
  return parameters;
}

TEST_CASE("no number of threads changes a bit of the parameters after some steps", "[kernels]") {
  const auto one = parameters_after_steps(1);
  CHECK(one.size() > 10);
  for (const int threads : {2, 3, 4}) {
    INFO(threads << " threads");
    for (const auto& [name, value] : parameters_after_steps(threads)) {
      INFO(name);
      const float *got = value.data<float>(), *want = one.at(name).data<float>();
      CHECK(std::equal(want, want + value.elements(), got));
    }
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
