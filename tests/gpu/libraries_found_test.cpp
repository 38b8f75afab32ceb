// Where CUDA's libraries are looked for, and drivers that do not do.
#include <dlfcn.h>

#include <filesystem>

#include "base/env.h"
#include "cli/cli_run.h"
#include "support/catch.h"

namespace tessera::test {

namespace TESSERA_FILE {

namespace fs = std::filesystem;

class With {
 public:
  With(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~With() { unsetenv(name_); }
  With(const With&) = delete;

 private:
  const char* name_;
};

TEST_CASE("CUDA's libraries are found in NVIDIA's packages of a Python environment", "[cuda]") {
  void* cuda = dlopen(TESSERA_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(cuda != nullptr);
  const auto find = reinterpret_cast<bool (*)(const std::string&, std::string&)>(
      dlsym(cuda, "tessera_cuda_find"));
  REQUIRE(find != nullptr);
  const std::string name = "libtessera_probe.so.13";
  std::string where;
  CHECK(!find(name, where));
  CHECK(where.find("belongs in LD_LIBRARY_PATH, or the Python environment in VIRTUAL_ENV") !=
        where.npos);
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    for (const char* below : {"lib/python3.12/site-packages/nvidia/cu13/lib", "lib"}) {
      const Folder folder;
      const fs::path place = fs::path(folder.dir) / below;
      fs::create_directories(place);
      fs::copy_file(TESSERA_LIBCUDA, place / name);
      CHECK(!find(name, where));
      const With environment(variable, folder.dir);
      CHECK(find(name, where));
      CHECK(where == (place / name).string());
    }
  }
}

TEST_CASE("a toolkit and an environment are looked at before /usr/local/cuda", "[cuda]") {
  const Folder folder;
  fs::create_directories(folder.dir + "/lib/python3.12/site-packages/nvidia/nccl/lib");
  fs::create_directories(folder.dir + "/lib/python3.12/site-packages/nvidia/cudnn/lib");
  const With home("CUDA_HOME", "/opt/toolkit"), environment("VIRTUAL_ENV", folder.dir);
  const std::string packages = folder.dir + "/lib/python3.12/site-packages/nvidia/";
  std::vector<std::string> all = cuda_folders();
  all.erase(std::remove_if(all.begin(), all.end(),
                           [](const auto& f) { return f.find("conda") != f.npos; }),
            all.end());
  CHECK(all == std::vector<std::string>{"/opt/toolkit/lib64", packages + "cudnn/lib",
                                        packages + "nccl/lib", folder.dir + "/lib",
                                        "/usr/local/cuda/lib64"});
}

TEST_CASE("a driver that is older than the toolkit, or sees no GPU, is named", "[cuda][cli]") {
  const Folder f;
  const std::string path =
      "LD_LIBRARY_PATH='" + fs::path(TESSERA_LIBCUDA).parent_path().string() + "'";
  const std::string old = "the driver can do CUDA 11.8; 1",
                    none = "the driver sees no GPU (cuInit: 34)";
  CliResult info = run_cli_in(f, "info", path + " TESSERA_STUB_DRIVER=11080");
  CHECK(info.out.find(old) != info.out.npos);
  info = run_cli_in(f, "info", path + " TESSERA_GRAPHS=off");
  CHECK(info.out.find(none) != info.out.npos);
  CHECK(info.out.find("TESSERA_CUDNN=on") != info.out.npos);
  CHECK(info.out.find("TESSERA_GRAPHS=off TESSERA_NCCL=on") != info.out.npos);
  const std::string train =
      "train gpt --steps 1 --device cuda --data '" TESSERA_SOURCE_DIR "/data/moby-dick.txt'";
  expect_failure(run_cli_in(f, train, path + " TESSERA_STUB_DRIVER=11080"), 1,
                 {"no GPU can be used", old, "or newer is needed"});
  expect_failure(run_cli_in(f, train, path), 1, {"no GPU can be used", none});
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
