// Files that bypass the page cache: the same bytes whatever the pieces and the file system.
#include "io/output_file.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <random>

#include "base/crc32c.h"
#include "ops/op_cases_run.h"
#include "support/io_folder.h"
#include "tessera/safetensors.h"

using namespace tessera;
using test::Folder;

namespace TESSERA_FILE {

std::string random_bytes(size_t count, std::mt19937_64& random) {
  std::string bytes(count, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

/// Writes `bytes` in random pieces, now and then from memory that needs no copy.
void write_in_pieces(const std::string& path, const std::string& bytes, std::mt19937_64& random) {
  OutputFile file;
  REQUIRE(file.create(path, std::ssize(bytes)) == 0);
  const AlignedBytes memory = aligned_bytes(std::ssize(bytes));
  for (size_t at = 0; at < bytes.size();) {
    const size_t unit = random() % 2 == 0 ? 4096 : 1;
    const size_t part =
        std::min(bytes.size() - at, unit * (1 + random() % ((size_t{3} << 19) / unit)));
    const size_t shift = random() % 3 == 0 ? 1 : 0;
    if (shift + part > bytes.size()) continue;
    std::copy_n(reinterpret_cast<const std::byte*>(bytes.data()) + at, part, memory.get() + shift);
    REQUIRE(file.append(memory.get() + shift, static_cast<int64_t>(part)) == 0);
    at += part;
  }
  REQUIRE(file.finish() == 0);
}

TEST_CASE("output files: any pieces, with and without direct writes") {
  const uint64_t seed = test::seed_of_run(7);
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const Folder f;
  const std::string memory = "/dev/shm/tessera-output-" + std::to_string(getpid());
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4096}, size_t{1} << 20,
                            (size_t{1} << 20) + 1, (size_t{9} << 20) + 4097}) {
    const std::string bytes = random_bytes(size, random);
    for (const std::string& path : {f("file"), memory}) {
      INFO(path << ", " << size << " bytes");
      write_in_pieces(path, bytes, random);
      std::ifstream in(path, std::ios::binary);
      CHECK(std::string{std::istreambuf_iterator<char>(in), {}} == bytes);
      OutputFile again;
      CHECK(again.create(path, std::ssize(bytes)) == EEXIST);
      std::filesystem::remove(path);
    }
  }
}

TEST_CASE("output files: room that is not there is told before anything is written") {
  const Folder f;
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  auto* handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{65536, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  OutputFile file;
  const int error = file.create(f("file"), int64_t{8} << 20);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  CHECK(error == EFBIG);
}

TEST_CASE("elements of large files lie where they can be written without a copy") {
  const Folder f;
  const std::string large(size_t{1} << 20, 'x');
  SafetensorsWriter writer(f("w"), {{"a", DType::uint8, {std::ssize(large)}}});
  writer.append(large.data(), 1000);
  writer.append(large.data(), std::ssize(large) - 1000);
  CHECK(f.error([&] { writer.append("x", 1); }) ==
        "usage [safetensors] 'DIR/w': 1 bytes more, but 0 are to come");
  writer.finish();
  const SafetensorsReader reader(f("w"));
  CHECK(reader.data_begin() % OutputFile::kAlign == 0);
  const Array a = reader.read("a");
  CHECK(std::string(reinterpret_cast<const char*>(a.bytes.data()), a.bytes.size()) == large);
}

TEST_CASE("crc32c: several blocks at once") {
  std::mt19937_64 random(3);
  for (const size_t block : {size_t{8}, size_t{13}, size_t{64}, size_t{4096}}) {
    for (size_t count = 0; count < 11; ++count) {
      const std::string bytes = random_bytes(block * count, random);
      std::vector<uint32_t> sums(count + 1, 77);
      crc32c_blocks(bytes.data(), block, count, sums.data());
      CHECK(sums[count] == 77);
      for (size_t i = 0; i < count; ++i) CHECK(sums[i] == crc32c(bytes.data() + i * block, block));
    }
  }
}

}  // namespace TESSERA_FILE
