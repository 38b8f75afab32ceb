// A small gpt on the ranks of an mpirun and on as many threads of this process: the same bits, for
// losses and for all that is stored; and the losses of one rank. The same for experts whose rows
// travel. The exit status is the number of differences.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>

#include "support/fed_experts.h"
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

/// Losses of steps whose choices go to one expert more and more, so that bounds of rows are raised.
struct ExpertsOutcome {
  std::vector<double> losses;
  size_t raised = 0;
};
ExpertsOutcome train_experts(Cluster& cluster) {
  constexpr int64_t kExperts = 6, kRows = 32;
  const test::FedExperts model(kExperts, kRows);
  Session session(model.g, cluster,
                  model.options(fmt::format("x:{}", cluster.size()), "batch,experts:x"));
  session.feed("x", test::wave(kRows));
  ExpertsOutcome outcome;
  for (uint32_t step = 0; step < 5; ++step) {
    session.feed("indices", test::Choices(kExperts, kRows, 1, 0.2 * step, step).array);
    session.run("train");
    outcome.losses.push_back(session.fetch_scalar("loss"));
  }
  outcome.raised = session.fallbacks().size();
  return outcome;
}

int check_experts(Cluster& mpi) {
  const ExpertsOutcome here = train_experts(mpi);
  if (!mpi.is_root()) return 0;
  Cluster threads = Cluster::threads(mpi.size()), single = Cluster::threads(1);
  const ExpertsOutcome there = train_experts(threads), one = train_experts(single);
  int wrong = here.losses != there.losses || here.raised != there.raised;
  wrong += mpi.size() > 2 && here.raised == 0;
  for (size_t step = 0; step < one.losses.size(); ++step)
    wrong += std::abs(here.losses[step] - one.losses[step]) > 1e-9 * one.losses[step];
  std::printf("experts: loss %.9g .. %.9g, bounds raised %zu times, %d wrong\n",
              here.losses.front(), here.losses.back(), here.raised, wrong);
  return wrong;
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
    wrong += check_experts(mpi);
    return wrong > 100 ? 100 : wrong;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 101;
  }
}
