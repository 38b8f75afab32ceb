// bench_checkpoint [--mib N] [--dir DIR] [--turns N]: saving and loading a checkpoint against what
// the disk does with plain files of the same bytes, by turns; MB/s (10^6 bytes), medians. A plain
// file is written from aligned memory in pieces of 8 MiB, by way of the page cache and past it
// (O_DIRECT), and the faster one counts. All go to a new file, end with fsync and replace the one
// of the turn before; before each read the file is dropped from the page cache, as far as the
// system does so.
#include "tessera/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/nn.h"

namespace {

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void must(bool done, const char* what) {
  if (!done) throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

constexpr size_t kChunk = size_t{8} << 20;

struct Bytes {
  char* data;
  size_t size;
};

void write_plain(const std::string& path, const Bytes& bytes, int flags) {
  const std::string fresh = path + ".new";
  const int fd = open(fresh.c_str(), O_CREAT | O_EXCL | O_WRONLY | flags, 0644);
  must(fd >= 0, "open");
  for (size_t at = 0; at < bytes.size;) {
    const ssize_t n = write(fd, bytes.data + at, std::min(kChunk, bytes.size - at));
    must(n > 0, "write");
    at += static_cast<size_t>(n);
  }
  must(fsync(fd) == 0, "fsync");
  close(fd);
  must(rename(fresh.c_str(), path.c_str()) == 0, "rename");
}

void read_plain(const std::string& path, const Bytes& bytes) {
  const int fd = open(path.c_str(), O_RDONLY);
  must(fd >= 0, "open");
  for (size_t at = 0; at < bytes.size;) {
    const ssize_t n = read(fd, bytes.data + at, std::min(kChunk, bytes.size - at));
    must(n > 0, "read");
    at += static_cast<size_t>(n);
  }
  close(fd);
}

void drop_from_cache(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY);
  must(fd >= 0, "open");
  must(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0, "posix_fadvise");
  close(fd);
}

void compare(int64_t mib, const std::string& directory, const std::string& mesh_text,
             const std::string& layout, int turns) {
  using namespace tessera;
  Graph g;
  const Dim layers("layers", 8), rows("rows", mib * 128), columns("columns", 256);
  Tensor w = g.parameter("w", {layers, rows, columns}, nn::normal(1));
  Tensor loss = sum_all(w).named("loss");
  const Mesh mesh = Mesh::parse(mesh_text);
  Cluster cluster = Cluster::threads(mesh.size());
  Session session(g, cluster, {mesh, Layout::parse(layout), {{"run", {loss}, false}}});
  std::vector<double> save, load, write, direct, read, copy;
  const size_t size = static_cast<size_t>(mib) << 20;
  const std::unique_ptr<char, decltype(&std::free)> memory(
      static_cast<char*>(std::aligned_alloc(4096, size)), &std::free);
  const Bytes bytes{memory.get(), size};
  for (size_t i = 0; i < size; ++i) bytes.data[i] = static_cast<char>(i * 2654435761u >> 13);
  const std::string plain = directory + "/plain";
  Checkpoints checkpoints(cluster, directory, 1);
  for (int turn = 0; turn < turns; ++turn) {
    std::string path;
    save.push_back(seconds([&] {
      copy.push_back(seconds([&] { checkpoints.start(session, turn); }));
      path = checkpoints.finish()->path;
    }));
    write.push_back(seconds([&] { write_plain(plain, bytes, 0); }));
    direct.push_back(seconds([&] { write_plain(plain, bytes, O_DIRECT); }));
    for (const auto& file : std::filesystem::directory_iterator(path)) drop_from_cache(file.path());
    load.push_back(seconds([&] { load_checkpoint(session, path); }));
    drop_from_cache(plain);
    read.push_back(seconds([&] { read_plain(plain, bytes); }));
  }
  const double mb = static_cast<double>(size) / 1e6;
  const double fastest = std::min(median(write), median(direct));
  fmt::print(
      "{} on {} ({} MiB): save {:.0f} MB/s, {:.2f} of a plain file ({:.0f} MB/s, direct {:.0f}), "
      "of "
      "which a step waits for {:.0f} ms; load {:.0f} MB/s, {:.2f} of a plain file ({:.0f})\n",
      layout.empty() ? "whole" : layout, mesh_text, mib, mb / median(save), fastest / median(save),
      mb / median(write), mb / median(direct), 1e3 * median(copy), mb / median(load),
      median(read) / median(load), mb / median(read));
}

}  // namespace

int main(int argc, char** argv) {
  int64_t mib = 512;
  int turns = 7;
  std::string parent = std::filesystem::temp_directory_path();
  CLI::App app("saving and loading against plain files");
  app.add_option("--mib", mib, "of parameters")->check(CLI::Range(8, 65536));
  app.add_option("--turns", turns, "of each, in turn")->check(CLI::Range(1, 1000));
  app.add_option("--dir", parent, "where the files are made, and removed")
      ->check(CLI::ExistingDirectory);
  CLI11_PARSE(app, argc, argv);
  std::string directory = parent + "/tessera-bench-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) {
    fmt::print(stderr, "bench_checkpoint: {}: {}\n", directory, std::strerror(errno));
    return 1;
  }
  int code = 0;
  try {
    compare(mib, directory, "one:1", "", turns);
    compare(mib, directory, "a:2", "rows:a", turns);
    compare(mib, directory, "a:2", "columns:a", turns);
  } catch (const std::exception& e) {
    fmt::print(stderr, "bench_checkpoint: {}\n", e.what());
    code = 1;
  }
  std::filesystem::remove_all(directory);
  return code;
}
