// A small gpt on the ranks of an mpirun and on as many threads of this process: the same bits, for
// losses and for all that is stored; and the losses of one rank. The exit status is the number of
// differences.
#include <cmath>
#include <cstdio>

#include "support/gpt_run.h"

using namespace tessera;

namespace {

constexpr int kSteps = 4;
constexpr DType kType = DType::float32;

int differences(const test::GptOutcome& a, const test::GptOutcome& b, const std::string& layout) {
  int count = 0;
  for (size_t step = 0; step < a.losses.size(); ++step) {
    if (a.losses[step] == b.losses[step]) continue;
    std::fprintf(stderr, "%s: step %zu: loss %.17g under MPI, %.17g on threads\n", layout.c_str(),
                 step + 1, a.losses[step], b.losses[step]);
    ++count;
  }
  for (const auto& [name, array] : a.stored) {
    if (array.bytes == b.stored.at(name).bytes) continue;
    std::fprintf(stderr, "%s: '%s' differs\n", layout.c_str(), name.c_str());
    ++count;
  }
  return count;
}

/// Losses that are not those of one rank, up to rounding.
int far_from_one_rank(const test::GptOutcome& one, const test::GptOutcome& many,
                      const std::string& layout) {
  int count = 0;
  for (size_t step = 0; step < one.losses.size(); ++step) {
    if (std::abs(many.losses[step] - one.losses[step]) <= 1e-5 * one.losses[step]) continue;
    std::fprintf(stderr, "%s: step %zu: loss %.9g, on one rank %.9g\n", layout.c_str(), step + 1,
                 many.losses[step], one.losses[step]);
    ++count;
  }
  return count;
}

}  // namespace

int main() {
  try {
    Cluster mpi = Cluster::mpi();
    const int n = mpi.size(), b = n % 2 == 0 && n > 2 ? 2 : 1;
    const Mesh mesh({{"a", n / b}, {"b", b}});
    int wrong = 0;
    Cluster single = Cluster::threads(1);
    const auto one = test::train_small_gpt(single, Mesh::parse("one:1"), "", kType, kSteps);
    for (const std::string layout : {"batch:a;heads,ff,vocab:b", "batch:a+b", "length:a;d_model:b",
                                     "ff,vocab:a;@state d_model:b", "batch:b;@params d_model:a"}) {
      const auto here = test::train_small_gpt(mpi, mesh, layout, kType, kSteps);
      if (!mpi.is_root()) continue;
      Cluster threads = Cluster::threads(n);
      const auto there = test::train_small_gpt(threads, mesh, layout, kType, kSteps);
      wrong += differences(here, there, layout) + far_from_one_rank(one, here, layout);
      std::printf("%-30s loss %.9g .. %.9g\n", layout.c_str(), here.losses.front(),
                  here.losses.back());
    }
    return wrong > 100 ? 100 : wrong;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 101;
  }
}
