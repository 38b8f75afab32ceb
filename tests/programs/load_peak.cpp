// The memory of a load: what one layout saved is loaded under another, and what is allocated beside
// the Session, which has its parameters and state already, is counted. At most a fifth of a rank's
// share and one tensor; it is far less. The exit status is 0 if that holds.
#include <fmt/format.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <new>

#include "tessera/checkpoint.h"
#include "tessera/tessera.h"

namespace {

std::atomic<int64_t> live{0}, peak{0};

void* counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const int64_t now = live += static_cast<int64_t>(malloc_usable_size(memory));
  int64_t before = peak;
  while (before < now && !peak.compare_exchange_weak(before, now)) {
  }
  return memory;
}

void give_back(void* memory) noexcept {
  if (memory != nullptr) live -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(size_t bytes) { return counted(std::malloc(bytes)); }
void* operator new(size_t bytes, std::align_val_t align) {
  const auto a = static_cast<size_t>(align);
  return counted(std::aligned_alloc(a, (bytes + a - 1) / a * a));
}
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, size_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { give_back(memory); }

namespace {

using namespace tessera;

constexpr int64_t kTensors = 8, kRows = 1024, kColumns = 512;  // 2 MiB a tensor

/// A session on so many thread ranks, and the bytes of one of them.
struct Model {
  Graph g;
  Cluster ranks;
  std::unique_ptr<Session> session;

  Model(const std::string& mesh, const std::string& layout)
      : ranks(Cluster::threads(Mesh::parse(mesh).size())) {
    const Dim r("rows", kRows), c("columns", kColumns);
    Tensor sum = constant(g, 0);
    for (int i = 0; i < kTensors; ++i)
      sum = sum + sum_all(g.parameter(fmt::format("w{}", i), {r, c}, nn::normal(1)));
    session = std::make_unique<Session>(
        g, ranks,
        CompileOptions{
            Mesh::parse(mesh), Layout::parse(layout), {{"sum", {sum.named("sum")}, false}}});
  }
  double value() {
    session->run("sum");
    return session->fetch_scalar("sum");
  }
};

}  // namespace

int main() {
  std::string directory = (std::filesystem::temp_directory_path() / "tessera-peak-XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) return 1;
  const int64_t tensor = kRows * kColumns * 4;
  int failed = 0;
  {
    Model saved("a:8", "rows:a");
    Checkpoints checkpoints(saved.ranks, directory);
    const std::string path = checkpoints.save(*saved.session, 1).path;
    for (const auto& [mesh, layout] :
         {std::pair("a:2", "columns:a"), {"a:3", "columns:a"}, {"a:2;b:2", "columns:a;rows:b"}}) {
      Model other(mesh, layout);
      const int64_t share = kTensors * tensor / Mesh::parse(mesh).size();
      const int64_t before = live;
      peak = before;
      load_checkpoint(*other.session, path);
      const int64_t beside = peak - before;
      const bool good = beside < share / 5 + tensor && beside < int64_t{1} << 20 &&
                        std::abs(other.value() - saved.value()) < 1e-2 * kRows;
      fmt::print("{} on {}: {} bytes beside a rank's {}: {}\n", layout, mesh, beside, share,
                 good ? "ok" : "FAILED");
      failed += !good;
    }
  }
  std::filesystem::remove_all(directory);
  return failed;
}
