// Seeing inside on the ranks of an mpirun: print lines come from the root alone and are those of
// threads, and so are dumps. The exit status is the number of failures. With an argument the
// logarithms of the first rank's part are not finite, and all ranks end with 3 and the same words.
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "tessera/checkpoint.h"
#include "tessera/inspect.h"
#include "tessera/tessera.h"

using namespace tessera;

namespace {

/// Runs log(x), shown, checked and dumped, on x = first .. first + 34; the lines of print().
std::vector<std::string> run(Cluster& ranks, const std::string& file, int first = 1) {
  Graph g;
  const Dim a("a", 7), b("b", 5);
  Tensor x = g.input("x", {a, b}, DType::float32);
  Tensor y = log(x).named("y");
  print(y, "log");
  check_finite(y, "logs");
  std::vector<std::string> lines;
  CompileOptions options{
      Mesh({{"p", ranks.size()}}), Layout::parse("a:p"), {{"run", {sum_all(y)}, false}}};
  options.keep = {"y"};
  options.print = [&](const std::string& line) { lines.push_back(line); };
  Session session(g, ranks, options);
  Array values(DType::float32, {"a", "b"}, {7, 5});
  for (int i = 0; i < 35; ++i) values.data<float>()[i] = static_cast<float>(i + first);
  session.feed("x", values);
  session.run("run");
  dump(session, g, {"x", "y"}, file);
  return lines;
}

int failures = 0;
void expect(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "failed: %s\n", what);
  ++failures;
}

}  // namespace

int main(int argc, char**) {
  try {
    Cluster mpi = Cluster::mpi();
    if (argc > 1) {
      run(mpi, "", -20);
      return 0;
    }
    const std::string folder = mpi.first_text(
        (std::filesystem::temp_directory_path() / ("tessera-inspect-" + std::to_string(getpid())))
            .string());
    std::filesystem::create_directories(folder);
    const std::vector<std::string> here = run(mpi, folder + "/mpi.safetensors");
    expect(here.size() == (mpi.is_root() ? 1u : 0u), "the root alone prints");
    if (mpi.is_root()) {
      Cluster threads = Cluster::threads(mpi.size());
      const std::vector<std::string> there = run(threads, folder + "/threads.safetensors");
      expect(here == there, "the line of threads");
      const Array y = read_tensor(folder + "/mpi.safetensors", "y");
      expect(y.bytes == read_tensor(folder + "/threads.safetensors", "y").bytes, "one dump");
      expect(y.dims == std::vector<std::string>{"a", "b"} && y.at(0) == 0, "a whole tensor");
      std::filesystem::remove_all(folder);
      std::printf("%s\n", here[0].c_str());
    }
    return failures;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    usleep(500000);  // the first that ends takes the others with it: all of them speak before
    return 3;
  }
}
