// Random sizes, strides, offsets and types through the generators of copies and of attention, as
// PTX, which checks the alignment and the place of every access.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include "gpu/given_kernel.h"
#include "ops/attention_cases.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"

namespace tessera::test {

namespace TESSERA_FILE {

using Random = std::mt19937_64;

int64_t below(Random& random, int64_t n) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
}

/// Memory in which a tensor lies somewhere, with gaps between its rows.
struct Placed {
  std::vector<char> memory;
  TensorArg tensor;
  char* element(const std::vector<int64_t>& index) {
    int64_t at = 0;
    for (size_t d = 0; d < index.size(); ++d) at += index[d] * tensor.strides[d];
    return static_cast<char*>(tensor.data) + at * size_of(tensor.dtype);
  }
};

/// Dims in any order of memory, with gaps, perhaps reversed; those of an input perhaps repeated.
Placed place(Random& random, DType dtype, const std::vector<int64_t>& sizes, bool is_input) {
  Placed p;
  p.tensor.dtype = dtype;
  p.tensor.sizes = sizes;
  p.tensor.strides.resize(sizes.size());
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (random() % 2 == 0) std::shuffle(order.begin(), order.end(), random);
  int64_t stride = 1, low = 0;
  for (const size_t d : order) {
    if (is_input && random() % 6 == 0) continue;  // stride 0
    p.tensor.strides[d] = stride;
    if (random() % 8 == 0) {
      p.tensor.strides[d] = -stride;
      low -= (sizes[d] - 1) * stride;
    }
    stride *= sizes[d];
    if (random() % 3 == 0) stride += 1 + below(random, 4);
  }
  const int64_t offset = random() % 2 == 0 ? 0 : below(random, 9), item = size_of(dtype);
  p.memory.resize(static_cast<size_t>((stride + 16) * item + 16));
  for (char& c : p.memory) c = static_cast<char>(random() & 0x3f);  // no NaN
  char* aligned = p.memory.data() + (16 - reinterpret_cast<uintptr_t>(p.memory.data()) % 16) % 16;
  p.tensor.data = aligned + (offset - low) * item;
  return p;
}

/// A copy of random numbers' bits from one place to another: what is wrong.
std::string copy_one(Random& random, int number) {
  constexpr DType kTypes[] = {DType::uint8, DType::bfloat16, DType::float16, DType::float32,
                              DType::int32, DType::float64,  DType::int64};
  const DType dtype = kTypes[random() % 7];
  std::vector<int64_t> sizes;
  for (int64_t d = 1 + below(random, 4); d > 0; --d)
    sizes.push_back(random() % 3 == 0 ? 16 << below(random, 3) : 1 + below(random, 9));
  Placed from = place(random, dtype, sizes, true), to = place(random, dtype, sizes, false);
  Step step;
  step.kernel = KernelKind::copy;
  KernelArgs args;
  args.step = &step;
  args.in = {from.tensor};
  args.out = {to.tensor};
  const cuda::Source source = cuda::generate_pointwise(args);
  const GivenKernel given(source, args);
  const std::vector<char> before = to.memory;
  host_kernel(source.text, KernelsAs::ptx)
      .run(given.words.data(), source.blocks, source.threads, &given.memory);
  std::vector<int64_t> index(sizes.size(), 0);
  const auto bytes = static_cast<size_t>(size_of(dtype));
  size_t changed = 0;
  for (size_t d = 0; d < sizes.size();) {
    if (std::memcmp(from.element(index), to.element(index), bytes) != 0)
      return fmt::format("\ncopy {} of {} [{}]: element [{}] differs", number, to_string(dtype),
                         fmt::join(sizes, ", "), fmt::join(index, ", "));
    const size_t at = static_cast<size_t>(to.element(index) - to.memory.data());
    for (size_t b = at; b < at + bytes; ++b) changed += before[b] != to.memory[b] ? 1 : 0;
    for (d = 0; d < sizes.size() && ++index[d] == sizes[d]; ++d) index[d] = 0;
  }
  for (size_t b = 0; b < before.size(); ++b) changed -= before[b] != to.memory[b] ? 1 : 0;
  return changed == 0 ? "" : fmt::format("\ncopy {} changes other memory", number);
}

AttentionCase draw(Random& random) {
  AttentionCase c;
  c.type = random() % 2 == 0 ? DType::bfloat16 : DType::float16;
  c.width = 1 + below(random, 130);
  c.length = 1 + below(random, 100);
  c.causal = random() % 2 == 0;
  c.memory = c.causal ? c.length : 1 + below(random, 100);
  c.heads = 1 + below(random, 2);
  c.group = 1 + below(random, 2);
  c.lie = static_cast<Lie>(random() % 4);
  if (random() % 2 == 0) c.window = 1 + below(random, 60);
  if (random() % 2 == 0) c.segments = 1 + below(random, 4);
  if (random() % 3 == 0) c.soft_cap = 1.5;
  return c;
}

TEST_CASE("copies between random places are right as PTX", "[cuda][ptx][slow]") {
  if (!has_ptx()) return;
  const char* wanted = std::getenv("TESSERA_PTX_COPIES");
  Random random(seed_of_run(1));
  std::string errors;
  for (int n = 0; n < (wanted ? std::atoi(wanted) : 60); ++n) errors += copy_one(random, n);
  CHECK(errors == "");
}

TEST_CASE("attention of random sizes is right as PTX", "[cuda][ptx][slow]") {
  if (!has_ptx()) return;
  const char* wanted = std::getenv("TESSERA_PTX_ATTENTIONS");
  Random random(seed_of_run(1));
  std::string errors;
  std::vector<std::unique_ptr<AttentionRun>> runs;
  for (int n = 0; n < (wanted ? std::atoi(wanted) : 6); ++n)
    runs.push_back(std::make_unique<AttentionRun>(draw(random)));
  for (const auto& run : runs) {
    for (const cuda::Source& s : run->sources()) announce_host_kernel(s.text, KernelsAs::ptx);
  }
  for (const auto& run : runs) errors += run->errors(KernelsAs::ptx);
  CHECK(errors == "");
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
