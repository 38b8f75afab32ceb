#include "gpu/host_kernels.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "base/fail.h"
#include "base/hash.h"
#include "gpu/ptx/kernels.h"

#ifndef TESSERA_KERNEL_INCLUDES  // flags: where headers are looked for first
#define TESSERA_KERNEL_INCLUDES ""
#endif

namespace tessera::test {

namespace {

namespace fs = std::filesystem;

bool has_fma() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

/// The hash of a header and of all that it includes in quotes, in the order of the compiler.
uint64_t hash_of_header(const fs::path& path, const std::vector<fs::path>& folders,
                        std::set<fs::path>& seen, uint64_t hash) {
  if (!seen.insert(path).second) return hash;
  std::istringstream lines(content_of(path));
  for (std::string line; std::getline(lines, line);) {
    hash = hash_of(line + "\n", hash);
    if (!line.starts_with("#include \"")) continue;
    const std::string name = line.substr(10, line.find('"', 10) - 10);
    if (fs::exists(path.parent_path() / name)) {
      hash = hash_of_header(path.parent_path() / name, folders, seen, hash);
      continue;
    }
    const auto in = std::find_if(folders.begin(), folders.end(),
                                 [&](const fs::path& f) { return fs::exists(f / name); });
    TESSERA_CHECK(in != folders.end(), "{} includes {}, which is nowhere", path.string(), name);
    hash = hash_of_header(*in / name, folders, seen, hash);
  }
  return hash;
}

/// The kernel's text as C++ between the headers and a function of C.
std::string body(std::string text, const std::string& key) {
  const bool waits =
      text.find("__syncthreads") != std::string::npos || text.find("__shfl") != std::string::npos ||
      text.find("attention") != std::string::npos || text.find("find_spans") != std::string::npos ||
      text.find("_threads<") != std::string::npos ||
      text.find("ordered_product") != std::string::npos;
  for (const char* without :
       {"#include \"kernels/cuda/device.h\"\n", "#include \"kernels/cuda/attention.h\"\n",
        "#include \"kernels/cuda/attention_tensor.h\"\n",
        "#include \"kernels/cuda/attention_tensor_grad.h\"\n",
        "#include \"kernels/cuda/ordered_sum.h\"\n", "#include \"kernels/cuda/segment_spans.h\"\n",
        "#include \"kernels/cuda/float8.h\"\n", "extern \"C\" "}) {
    if (const size_t at = text.find(without); at != std::string::npos)
      text.erase(at, std::strlen(without));
  }
  return fmt::format(
      "namespace k{0} {{\n{1}}}\nextern \"C\" void run_{0}(const void* args, int64_t blocks, int "
      "threads) {{\n  shim::run([](const void* a) {{ k{0}::tessera_kernel(*static_cast<const "
      "k{0}::Args*>(a)); }}, args, blocks, threads, {2});\n}}\n",
      key, text, waits);
}

/// A folder for files that nobody else may see yet: they are renamed when they are whole.
class WorkFolder {
 public:
  explicit WorkFolder(const fs::path& in) : path_((in / "work-XXXXXX").string()) {
    fs::create_directories(in);
    TESSERA_CHECK(mkdtemp(path_.data()) != nullptr, "no folder for kernels: {}", path_);
  }
  WorkFolder(const WorkFolder&) = delete;
  ~WorkFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  fs::path path() const { return path_; }

 private:
  std::string path_;
};

void run_shell(const std::string& command) {
  TESSERA_CHECK(std::system(command.c_str()) != -1, "no shell to run the compiler in");
}

std::string library_name(const std::string& content) {
  return fmt::format("{:016x}.so", hash_of(content));
}

}  // namespace

class KeptKernels::Kernel final : public HostKernel {
 public:
  explicit Kernel(std::string source) : text(std::move(source)) {}
  void run(const void* args, int64_t blocks, int threads,
           const KernelMemory* /*memory*/) const override {
    function(args, blocks, threads);
  }
  const std::string text;
  std::string key;
  void (*function)(const void* args, int64_t blocks, int threads) = nullptr;
};

KeptKernels::KeptKernels(fs::path folder, fs::path source)
    : folder_(std::move(folder)), source_(std::move(source)) {}
KeptKernels::~KeptKernels() = default;

void KeptKernels::announce(const std::string& text) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Kernel>& kernel = kernels_[text];
  if (kernel != nullptr) return;
  kernel = std::make_unique<Kernel>(text);
  waiting_.push_back(kernel.get());
}

const HostKernel& KeptKernels::get(const std::string& text) {
  announce(text);
  const std::lock_guard lock(mutex_);
  Kernel& kernel = *kernels_.at(text);
  if (kernel.function == nullptr) {
    if (std::find(waiting_.begin(), waiting_.end(), &kernel) == waiting_.end())
      waiting_.push_back(&kernel);  // it did not compile
    compile_waiting();
  }
  return kernel;
}

/// The compiler's command, and the headers of all kernels.
void KeptKernels::prepare() {
  const char* fma = has_fma() ? " -mfma" : "";  // else the same bits by calls, slowly
  command_ =
      fmt::format("{} -std=c++20 -O1 -w{} -ffp-contract=off -fno-math-errno -fPIC {} -I{}/src -I{}",
                  TESSERA_CXX, fma, TESSERA_KERNEL_INCLUDES, source_.string(), source_.string());
  const std::string text =
      "#include \"tests/gpu/cuda_shim.h\"\n"
      "#include \"kernels/cuda/attention_tensor_grad.h\"\n"
      "#include \"kernels/cuda/float8.h\"\n"
      "#include \"kernels/cuda/ordered_sum.h\"\n";
  std::vector<fs::path> folders;
  std::istringstream words(command_);
  for (std::string word; words >> word;) {
    if (word.starts_with("-I")) folders.emplace_back(word.substr(2));
  }
  const WorkFolder work(folder_);
  const fs::path header = work.path() / "headers.h";
  std::ofstream(header) << text;
  std::set<fs::path> seen;
  hash_ = hash_of_header(header, folders, seen, hash_of(command_ + __VERSION__));
  headers_ = folder_ / fmt::format("{:016x}.h", hash_);
  if (!fs::exists(headers_)) fs::rename(header, headers_);
}

/// A damaged one makes compilations fail, which then do without it and remove it.
void KeptKernels::precompile_headers() {
  const fs::path precompiled = headers_.string() + ".gch";
  if (fs::exists(precompiled)) return;
  const WorkFolder work(folder_);
  run_shell(fmt::format("{} -x c++-header {} -o {}/gch 2> {}/log", command_, headers_.string(),
                        work.path().string(), work.path().string()));
  std::error_code failed;  // the compilations say why
  fs::rename(work.path() / "gch", precompiled, failed);
}

/// False if the folder does not have it whole.
bool KeptKernels::load(Kernel& kernel) {
  std::error_code missing;
  const std::string name = fs::read_symlink(folder_ / kernel.key, missing).string();
  if (missing) return false;
  void*& library = libraries_[name];
  if (library == nullptr && library_name(content_of(folder_ / name)) == name)
    library = dlopen((folder_ / name).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  kernel.function =
      reinterpret_cast<decltype(kernel.function)>(dlsym(library, ("run_" + kernel.key).c_str()));
  return kernel.function != nullptr;
}

void KeptKernels::compile_waiting() {
  if (headers_.empty()) prepare();
  std::vector<Kernel*> missing;
  for (Kernel* kernel : std::exchange(waiting_, {})) {
    kernel->key = fmt::format("{:016x}", hash_of(body(kernel->text, ""), hash_));
    if (!load(*kernel)) missing.push_back(kernel);
  }
  if (!missing.empty()) compile(missing);
}

void KeptKernels::compile(const std::vector<Kernel*>& kernels) {
  precompile_headers();
  const WorkFolder work(folder_);
  const size_t files = std::clamp<size_t>(kernels.size() / kKernelsOfFile, 1,
                                          std::max(1U, std::thread::hardware_concurrency()));
  std::string command;
  for (size_t f = 0; f < files; ++f) {
    const std::string file = work.path() / std::to_string(f);
    std::ofstream source(file + ".cpp");
    for (size_t k = f; k < kernels.size(); k += files)
      source << body(kernels[k]->text, kernels[k]->key);
    const auto with = [&](const std::string& headers) {
      return fmt::format("{} -shared -include {} {}.cpp -o {}.so 2> {}.log", command_, headers,
                         file, file, file);
    };
    const std::string plain = work.path() / "headers.h";  // beside which nothing is precompiled
    command += fmt::format("{{ {} || {{ cp {} {} && {} && rm -f {}.gch; }}; }} & ",
                           with(headers_.string()), headers_.string(), plain, with(plain),
                           headers_.string());
  }
  run_shell(command + "wait");
  std::string errors;
  for (size_t f = 0; f < files; ++f) {
    const std::string file = work.path() / std::to_string(f);
    const std::string content = content_of(file + ".so");
    if (content.empty()) errors += content_of(file + ".log");
    if (content.empty()) continue;
    const std::string name = library_name(content);
    fs::rename(file + ".so", folder_ / name);
    for (size_t k = f; k < kernels.size(); k += files) {
      fs::create_symlink(name, work.path() / kernels[k]->key);
      fs::rename(work.path() / kernels[k]->key, folder_ / kernels[k]->key);
      TESSERA_CHECK(load(*kernels[k]), "a generated kernel cannot be loaded from {}",
                    (folder_ / name).string());
      ++compiled_;
    }
  }
  TESSERA_CHECK(errors.empty(), "generated kernels do not compile: {}", errors.substr(0, 3000));
}

namespace {

KeptKernels& kernels() {
  static KeptKernels instance(TESSERA_KERNEL_FOLDER, TESSERA_SOURCE_DIR);
  return instance;
}

}  // namespace

bool has_ptx() { return ptx::can_compile(); }

KernelsAs kernels_by_default() {
  const char* wanted = std::getenv("TESSERA_TEST_KERNELS");
  const std::string name = wanted == nullptr ? "c++" : wanted;
  TESSERA_CHECK(name == "c++" || name == "ptx",
                "TESSERA_TEST_KERNELS is '{}'; it may be c++ or ptx", name);
  return name == "ptx" ? KernelsAs::ptx : KernelsAs::cpp;
}

void announce_host_kernel(const std::string& text, KernelsAs as) {
  if (as == KernelsAs::ptx) return ptx::announce(text);
  kernels().announce(text);
}

const HostKernel& host_kernel(const std::string& text, KernelsAs as) {
  return as == KernelsAs::ptx ? ptx::kernel(text) : kernels().get(text);
}

}  // namespace tessera::test
