// Long runs in one process: what they may not leave behind. Steps of a tiny model, then Sessions
// that are made, trained, saved, loaded and destroyed, each with ranks of its own.
#pragma once

#include <malloc.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "collectives/communicator.h"
#include "support/gpt_run.h"
#include "tessera/checkpoint.h"

namespace tessera::test {

struct SoakOptions {
  int64_t steps = 2000, sessions = 40;
  std::function<Cluster()> make_ranks;
  std::function<int64_t()> communicators;  ///< a number that grows with those of MPI; or empty
};

/// Reads --steps N and --sessions N. Exits with 2 for anything else.
inline SoakOptions soak_options(int argc, char** argv) {
  SoakOptions options;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if ((flag != "--steps" && flag != "--sessions") || i + 1 == argc) {
      std::fprintf(stderr, "%s [--steps N] [--sessions N]\n", argv[0]);
      std::exit(2);
    }
    (flag == "--steps" ? options.steps : options.sessions) = std::atoll(argv[i + 1]);
  }
  return options;
}

/// What a process holds.
struct Holdings {
  int64_t resident = 0, heap = 0;  ///< bytes
  int64_t files = 0, mappings = 0, threads = 0, communicators = 0;
};

inline Holdings holdings(const SoakOptions& options) {
  Holdings h;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) h.resident = std::atoll(line.c_str() + 6) * 1024;
    if (line.rfind("Threads:", 0) == 0) h.threads = std::atoll(line.c_str() + 8);
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) ++h.mappings;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++h.files;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const struct mallinfo2 info = mallinfo2();
  h.heap = static_cast<int64_t>(info.uordblks + info.hblkhd);
#endif
  if (options.communicators) h.communicators = options.communicators();
  return h;
}

/// Three samples of a phase: after its first tenth, in the middle, at the end.
class Growth {
 public:
  Growth(const SoakOptions& options, std::string phase, int64_t rounds, bool speaks)
      : options_(options), phase_(std::move(phase)), rounds_(rounds), speaks_(speaks) {}

  void after(int64_t round) {
    const bool first = round == std::max<int64_t>(1, rounds_ / 10);
    if (!first && round != rounds_ / 2 && round != rounds_) return;
    last_ = holdings(options_);
    if (first) first_ = last_;
    if (!speaks_) return;
    std::printf(
        "%-8s %7lld: resident %.1f MiB, heap %.1f KiB, %lld files, %lld mappings, "
        "%lld threads",
        phase_.c_str(), static_cast<long long>(round),
        static_cast<double>(last_.resident) / 1048576, static_cast<double>(last_.heap) / 1024,
        static_cast<long long>(last_.files), static_cast<long long>(last_.mappings),
        static_cast<long long>(last_.threads));
    if (options_.communicators)
      std::printf(", communicator %lld", static_cast<long long>(last_.communicators));
    std::printf("\n");
    std::fflush(stdout);
  }

  /// What has grown: the number of complaints, printed.
  int complaints() const {
    int count = 0;
    const auto complain = [&](const char* what, int64_t first, int64_t last, int64_t allowed) {
      if (last - first <= allowed) return;
      std::fprintf(stderr, "%s: %s grew from %lld to %lld\n", phase_.c_str(), what,
                   static_cast<long long>(first), static_cast<long long>(last));
      ++count;
    };
    complain("files", first_.files, last_.files, 0);
    complain("threads", first_.threads, last_.threads, 0);
    complain("communicators", first_.communicators, last_.communicators, 0);
    complain("mappings", first_.mappings, last_.mappings, 16);
    complain("the heap", first_.heap, last_.heap, 64 * 1024);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    complain("resident memory", first_.resident, last_.resident, 8 * 1024 * 1024);
#endif
    return count;
  }

 private:
  const SoakOptions& options_;
  std::string phase_;
  int64_t rounds_;
  bool speaks_;
  Holdings first_, last_;
};

/// A model, its ranks and its Session.
struct TinyRun {
  Cluster ranks;
  Graph graph;
  nn::Model model;
  std::unique_ptr<Session> session;

  TinyRun(Cluster cluster, const std::string& layout) : ranks(std::move(cluster)) {
    nn::GptOptions o;
    o.layers = 1;
    o.d_model = 8;
    o.heads = 2;
    o.ff = 8;
    o.length = 4;
    o.vocab = 17;
    o.batch = 4;
    model = nn::gpt(graph, o);
    minimize(model.loss, constant(graph, 0.001), adam());
    const Mesh mesh({{"a", ranks.size()}});
    session = std::make_unique<Session>(
        graph, ranks, CompileOptions{mesh, Layout::parse(layout), {{"train", {model.loss}, true}}});
  }
  double step() {
    feed_tokens(*session, model, session->step() % 100);
    session->run("train");
    return session->fetch_scalar(model.loss.name());
  }
};

inline int soak_in(const std::string& directory, const SoakOptions& options) {
  int complaints = 0;
  {
    TinyRun run(options.make_ranks(), "batch:a");
    Growth growth(options, "steps", options.steps, run.ranks.is_root());
    for (int64_t i = 1; i <= options.steps; ++i) run.step(), growth.after(i);
    complaints += growth.complaints();
  }
  const char* layouts[] = {"batch:a", "length:a", "ff,vocab:a", "d_model:a",
                           "batch:a;@params d_model:a"};
  std::unique_ptr<Growth> growth;
  for (int64_t i = 1; i <= options.sessions; ++i) {
    bool root = false;
    {
      TinyRun run(options.make_ranks(), layouts[i % 5]);
      root = run.ranks.is_root();
      run.step();
      if (i % 5 == 0) {
        Checkpoints saved(run.ranks, directory);
        load_checkpoint(*run.session, saved.save(*run.session, run.session->step()).path);
      }
      try {
        run.session->fetch("nothing");
        return 100;
      } catch (const Error&) {
      }
    }
    if (!growth) growth = std::make_unique<Growth>(options, "sessions", options.sessions, root);
    growth->after(i);
  }
  return complaints + growth->complaints();
}

/// Both phases; the number of things that grew, 0 if all is well: what main() returns. Collective.
inline int soak(const SoakOptions& options) {
  try {
    Cluster ranks = options.make_ranks();
    std::string made = (std::filesystem::temp_directory_path() / "tessera-soak-XXXXXX").string();
    if (!ranks.is_root() || mkdtemp(made.data()) == nullptr) made.clear();
    const std::string directory = ranks.first_text(made);
    const int complaints = soak_in(directory, options);
    ranks.run([](int, Communicator& world) { world.barrier(); });
    if (ranks.is_root()) std::filesystem::remove_all(directory);
    return complaints;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 101;
  }
}

}  // namespace tessera::test
