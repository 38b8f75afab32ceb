#include <fstream>
#include <thread>

#include "gpu/host_kernels.h"
#include "support/catch.h"
#include "support/io_folder.h"

using namespace tessera::test;

namespace {

namespace fs = std::filesystem;

/// A kernel that writes `value`.
std::string kernel(const std::string& value) {
  return "#include \"kernels/cuda/device.h\"\n\nstruct Args {\n  float* o0;\n};\n\n"
         "extern \"C\" __global__ void __launch_bounds__(1) tessera_kernel(Args a) {\n"
         "  a.o0[blockIdx.x] = " +
         value + ";\n}\n";
}

float run(KeptKernels& kernels, const std::string& text) {
  float out = -1, *args = &out;
  kernels.get(text).run(&args, 1, 1);
  return out;
}

/// Puts the beginning of each file whose name ends like this in its place.
void cut(const Folder& folder, const std::string& ending, size_t bytes) {
  int cut = 0;
  for (const std::string& name : folder.names()) {
    if (!name.ends_with(ending)) continue;
    fs::rename(folder.write("other", folder.read(name).substr(0, bytes)), folder(name));
    ++cut;
  }
  CHECK(cut > 0);
}

}  // namespace

TEST_CASE("emulated kernels are compiled once, kept, and compiled again if damaged", "[cuda]") {
  const Folder folder;
  const std::string two = kernel("2"), three = kernel("3");
  const auto compiled = [&] {
    KeptKernels kernels(folder.dir, TESSERA_SOURCE_DIR);
    kernels.announce(two);
    kernels.announce(three);
    CHECK(run(kernels, three) == 3);
    CHECK(run(kernels, two) == 2);
    CHECK(run(kernels, two) == 2);
    return kernels.compiled();
  };
  CHECK(compiled() == 2);
  CHECK(compiled() == 0);
  cut(folder, ".so", 5000);
  CHECK(compiled() == 2);
  for (const std::string& name : folder.names()) {
    if (name.ends_with(".so")) fs::remove(folder(name));
  }
  cut(folder, ".gch", 1 << 20);
  CHECK(compiled() == 2);
  CHECK(compiled() == 0);

  KeptKernels kernels(folder.dir, TESSERA_SOURCE_DIR);
  const std::string error = folder.error([&] { kernels.get(kernel("nothing_of_this_name")); });
  INFO(error);
  CHECK(error.starts_with("internal generated kernels do not compile: "));
  CHECK(error.find("error: ") < error.find("nothing_of_this_name"));
  CHECK(run(kernels, two) == 2);

  const size_t files = folder.names().size();
  std::vector<float> found(3);
  std::vector<std::thread> threads;
  for (float& value : found) {
    threads.emplace_back([&] {
      KeptKernels kernels(folder.dir, TESSERA_SOURCE_DIR);
      value = run(kernels, kernel("4"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(found == std::vector<float>(3, 4));
  CHECK(folder.names().size() == files + 2);  // the library and the name of its kernel
}

TEST_CASE("emulated kernels are compiled again when a header changes", "[cuda]") {
  const Folder folder;
  const fs::path source = TESSERA_SOURCE_DIR;
  for (const std::string part : {"kernels", "src/base", "src/program", "tests/gpu"}) {
    for (const auto& entry : fs::recursive_directory_iterator(source / part)) {
      const fs::path to = folder.dir / fs::relative(entry.path(), source);
      if (entry.path().extension() != ".h" && entry.path().extension() != ".inc") continue;
      fs::create_directories(to.parent_path());
      fs::copy_file(entry.path(), to);
    }
  }
  for (const float value : {2.0F, 3.0F}) {
    std::ofstream(folder("kernels/cuda/fault.h"), std::ios::app)
        << "\n#undef VALUE_OF_HEADER\n#define VALUE_OF_HEADER " << value << "\n";
    KeptKernels kernels(folder("kept"), folder.dir);
    CHECK(run(kernels, kernel("VALUE_OF_HEADER")) == value);
  }
}
