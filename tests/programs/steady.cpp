// A step of training allocates nothing: every operator new of the process, and every malloc of our
// own code (the linker wraps it; libraries such as BLAS and MPI keep theirs), is counted while a
// small gpt is fed and trained. Arguments: threads RANKS, mpi, or messages (MPI with a host of its
// own for every rank). The exit status is 0 if nothing was counted; else the first places are
// printed. The arenas are as large as their plan.
#include <dlfcn.h>
#include <execinfo.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>

#include "collectives/communicator.h"
#include "support/gpt_run.h"
#include "tessera/data.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int> count{0};
std::atomic<int64_t> aligned_bytes{
    0};  ///< asked with an alignment: arenas, and slabs of collectives

void note() {
  if (!counting.load(std::memory_order_relaxed)) return;
  if (count.fetch_add(1) >= 5) return;
  counting = false;  // what prints may allocate
  void* frames[24];
  const int depth = backtrace(frames, 24);
  static const char line[] = "an allocation at\n";
  if (write(2, line, sizeof(line) - 1) > 0) backtrace_symbols_fd(frames, depth, 2);
  counting = true;
}

/// oneDNN makes a few small objects in each of its products; they are its own.
bool is_of_library(void* caller) {
  Dl_info info;
  return counting.load(std::memory_order_relaxed) && dladdr(caller, &info) != 0 &&
         std::strstr(info.dli_fname, "libdnnl") != nullptr;
}

extern "C" int __real_posix_memalign(void** memory, size_t alignment, size_t bytes);

void* obtain(size_t bytes, size_t alignment, void* caller) {
  if (!is_of_library(caller)) note();
  void* memory = nullptr;
  if (__real_posix_memalign(&memory, alignment < sizeof(void*) ? sizeof(void*) : alignment,
                            bytes + !bytes))
    throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) {
  return obtain(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__, __builtin_return_address(0));
}
void* operator new[](size_t bytes) {
  return obtain(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__, __builtin_return_address(0));
}
void* operator new(size_t bytes, std::align_val_t to) {
  return obtain(bytes, size_t(to), __builtin_return_address(0));
}
void* operator new[](size_t bytes, std::align_val_t to) {
  return obtain(bytes, size_t(to), __builtin_return_address(0));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

extern "C" {
void* __real_malloc(size_t bytes);
void* __real_calloc(size_t count, size_t bytes);
void* __real_realloc(void* memory, size_t bytes);
void* __real_aligned_alloc(size_t alignment, size_t bytes);
void* __wrap_malloc(size_t bytes) { return note(), __real_malloc(bytes); }
void* __wrap_calloc(size_t n, size_t bytes) { return note(), __real_calloc(n, bytes); }
void* __wrap_realloc(void* memory, size_t bytes) { return note(), __real_realloc(memory, bytes); }
void* __wrap_aligned_alloc(size_t to, size_t bytes) {
  aligned_bytes += static_cast<int64_t>(bytes);
  return note(), __real_aligned_alloc(to, bytes);
}
int __wrap_posix_memalign(void** memory, size_t to, size_t bytes) {
  aligned_bytes += static_cast<int64_t>(bytes);
  return note(), __real_posix_memalign(memory, to, bytes);
}
}

namespace {

using namespace tessera;

/// Windows of a rule; what a Batcher reads.
class Numbers final : public DataSource {
 public:
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t examples() const override { return 100; }
  void read(int64_t example, int field, const DataBox& box) const override {
    for (int64_t i = 0; i < box.extent[0]; ++i) {
      const int64_t at = example * 7 + box.offset[0] + i + field;
      static_cast<int32_t*>(box.data)[i * box.strides[0]] = static_cast<int32_t>(at * at % 17);
    }
  }

 private:
  std::vector<DataField> fields_ = {{"inputs", DType::int32, {Dim("length", 6)}},
                                    {"targets", DType::int32, {Dim("length", 6)}}};
};

/// Making the session has allocated its arenas as planned and besides them only whole slabs of the
/// collectives. (MPI ranks map theirs.)
bool as_planned(Session& session, int64_t bytes) {
  if (session.cluster().backend() != "threads") return true;
  constexpr int64_t kSlab = 256 * 1024;
  const int64_t arenas = session.cluster().size() * (session.program().persistent_bytes() +
                                                     session.program().transient_bytes());
  if (bytes >= arenas && (bytes - arenas) % kSlab == 0) return true;
  std::fprintf(stderr, "%lld bytes were allocated, %lld for arenas are planned\n",
               static_cast<long long>(bytes), static_cast<long long>(arenas));
  return false;
}

/// Allocations of the steps 3 to 20, of feeding them by `feed`, and of reading the loss.
int allocations(Cluster& ranks, const Mesh& mesh, const std::string& layout, DType dtype,
                const std::function<void(Session&, int64_t)>& feed) {
  Graph g;
  const nn::Model model = nn::gpt(g, test::small_gpt(dtype));
  MinimizeOptions options;
  options.clip = 1;
  const Minimized minimized = minimize(model.loss, constant(g, 0.01), adam(), options);
  CompileOptions compile{
      mesh, Layout::parse(layout), {{"train", {model.loss, minimized.gradient_norm}, true}}};
  compile.guards = {model.loss.name(), minimized.gradient_norm.name()};
  const int64_t before = aligned_bytes;
  Session session(g, ranks, compile);
  const bool planned = as_planned(session, aligned_bytes - before);
  const std::string train = "train", loss = model.loss.name();
  double first = 0, last = 0;
  for (int64_t step = 1; step <= 20; ++step) {
    if (step == 3) {
      ranks.run([](int, Communicator& world) { world.barrier(); });
      count = 0;
      counting = true;
    }
    feed(session, step);
    session.run(train);
    last = session.fetch_scalar(loss);
    if (step == 1) first = last;
  }
  counting = false;
  if (!(last < first)) std::fprintf(stderr, "the loss went from %g to %g\n", first, last);
  return count + (last < first ? 0 : 1) + (planned ? 0 : 1);
}

/// What the counter must not miss: memory of the library and of a container.
bool counts() {
  count = 5;  // too many for a report
  counting = true;
  const Array array(DType::float32, {}, {3});
  const auto world = make_local_world(1);
  counting = false;
  if (count > 5 + 1) return true;
  std::fprintf(stderr, "the counter does not count\n");
  return false;
}

int run(Cluster& ranks) {
  if (!counts()) return 1;
  const int n = ranks.size();
  const Numbers numbers;
  const Batcher batches(numbers, test::small_gpt(DType::float32).batch);
  const auto batched = [&](Session& session, int64_t step) { batches.feed(session, step); };
  Array tokens(DType::int32, {"batch", "length"}, {10, 6});
  const std::string inputs = "inputs", targets = "targets";
  const auto whole = [&](Session& session, int64_t) {
    session.feed(inputs, tokens);
    session.feed(targets, tokens);
  };
  int wrong = 0;
  const auto check = [&](const Mesh& mesh, const std::string& layout, DType dtype) {
    const int a = allocations(ranks, mesh, layout, dtype, batched),
              b = allocations(ranks, mesh, layout, dtype, whole);
    if (a + b > 0 || ranks.is_root()) {
      std::printf("%d ranks, layout '%s', %s: %d allocations fed by batches, %d fed whole\n", n,
                  layout.c_str(), to_string(dtype), a, b);
    }
    wrong += a + b;
  };
  const Mesh line({{"a", n}});
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    check(line, n == 1 ? "" : "batch:a", dtype);
    if (n % 2 != 0) continue;
    const Mesh square({{"a", n / 2}, {"b", 2}});
    check(square, "batch:a;heads,ff,vocab:b", dtype);
    check(square, "length:b;@params d_model:a", dtype);
    check(square, "batch:a;@/*norm*/ length:b;ff:b;@state d_model:a", dtype);
  }
  return wrong;
}

int run_as(const std::string& mode, int ranks) {
  if (mode == "mpi") {
    Cluster cluster = Cluster::mpi();
    return run(cluster);
  }
  if (mode == "messages") {
    MpiOptions options;
    options.ranks_per_host = 1;
    Cluster cluster = Cluster::adopt(make_mpi_world(options));
    return run(cluster);
  }
  Cluster cluster = Cluster::threads(ranks);
  return run(cluster);
}

}  // namespace

int main(int argc, char** argv) {
  void* frames[1];
  backtrace(frames, 1);  // loads what it needs
  try {
    return run_as(argc > 1 ? argv[1] : "threads", argc > 2 ? std::atoi(argv[2]) : 1) > 0 ? 1 : 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 101;
  }
}
