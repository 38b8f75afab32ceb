// The pieces of a tensor must be the cells of a grid, as layouts make them. A manifest can then be
// checked for gaps and overlaps without comparing all pairs of pieces.
#include "io/manifest.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/crc32c.h"
#include "base/fail.h"
#include "base/files.h"
#include "io/checkpoint_files.h"
#include "io/file.h"

namespace tessera {

namespace {

using Json = nlohmann::json;
constexpr std::string_view kHead = "{\"crc32c\":\"", kMiddle = "\",\"manifest\":", kTail = "}\n";
constexpr int64_t kMostBytes = int64_t{1} << 30;

template <class... Args>
[[noreturn]] void refuse_manifest(const std::string& path, fmt::format_string<Args...> text,
                                  Args&&... args) {
  fail(ErrorKind::io, "[checkpoint] the manifest '{}' {}", path,
       fmt::format(text, std::forward<Args>(args)...));
}

/// Throws unless the pieces are the cells of a grid over the whole tensor.
void require_grid(const std::string& path, const std::string& name, const ManifestTensor& t) {
  const std::vector<int64_t>& sizes = t.shape.sizes;
  int64_t cells = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    std::set<int64_t> begins;
    for (const FilePiece& p : t.pieces) begins.insert(p.offset[d]);
    for (const FilePiece& p : t.pieces) {
      const auto next = begins.upper_bound(p.offset[d]);
      const int64_t end = next == begins.end() ? sizes[d] : *next;
      if (p.offset[d] + p.extent[d] != end)
        refuse_manifest(path, "has a piece of tensor '{}' that ends at {} of dim {} instead of {}",
                        name, p.offset[d] + p.extent[d], d, end);
    }
    if (sizes[d] > 0 && (begins.empty() || *begins.begin() != 0))
      refuse_manifest(path, "has no piece of tensor '{}' that begins at 0 of dim {}", name, d);
    if (__builtin_mul_overflow(cells, static_cast<int64_t>(begins.size()), &cells)) cells = -1;
  }
  if (sizes.empty()) cells = 1;
  std::set<std::vector<int64_t>> places;
  for (const FilePiece& p : t.pieces) places.insert(p.offset);
  if (std::ssize(places) != cells || places.size() != t.pieces.size())
    refuse_manifest(path, "has {} pieces of tensor '{}', which needs {}", t.pieces.size(), name,
                    cells);
}

DType dtype_of(const std::string& path, const std::string& tensor, const std::string& name) {
  for (DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::int32, DType::int64,
                      DType::uint8, DType::bool_, DType::float16}) {
    if (to_string(dtype) == name) return dtype;
  }
  refuse_manifest(path, "has tensor '{}' of the unknown dtype '{}'", tensor, name);
}

void require_sizes(const std::string& path, const std::string& name, const ManifestTensor& t) {
  const size_t rank = t.shape.sizes.size();
  int64_t bytes = size_of(t.shape.dtype);
  for (int64_t size : t.shape.sizes) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes))
      refuse_manifest(path, "gives tensor '{}' the impossible sizes [{}]", name,
                      fmt::join(t.shape.sizes, ", "));
  }
  if (t.shape.dims.size() != rank && !t.shape.dims.empty())
    refuse_manifest(path, "gives tensor '{}' {} dim names for {} sizes", name, t.shape.dims.size(),
                    rank);
  for (const FilePiece& p : t.pieces) {
    bool fits = p.offset.size() == rank && p.extent.size() == rank;
    for (size_t d = 0; fits && d < rank; ++d) {
      fits = p.offset[d] >= 0 && p.extent[d] > 0 && p.extent[d] <= t.shape.sizes[d] &&
             p.offset[d] <= t.shape.sizes[d] - p.extent[d];
    }
    if (!fits)
      refuse_manifest(path, "has a piece [{}] at [{}] of tensor '{}', which has the sizes [{}]",
                      fmt::join(p.extent, ", "), fmt::join(p.offset, ", "), name,
                      fmt::join(t.shape.sizes, ", "));
  }
}

/// An integer that fits into 64 bits; the library would truncate others.
int64_t whole(const std::string& path, const Json& value) {
  const bool good = value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t{INT64_MAX}
                                               : value.is_number_integer();
  if (!good)
    refuse_manifest(path, "has {} where a whole number of 64 bits stands",
                    value.is_number() ? value.dump() : value.type_name());
  return value.get<int64_t>();
}

std::vector<int64_t> wholes(const std::string& path, const Json& values) {
  std::vector<int64_t> numbers;
  for (const Json& v : values) numbers.push_back(whole(path, v));
  return numbers;
}

void parse_files(Manifest& m, const Json& files, const std::string& path) {
  for (const Json& f : files) {
    ManifestFile file{f.at("name"), whole(path, f.at("bytes")),
                      static_cast<uint32_t>(whole(path, f.at("header_crc32c"))),
                      static_cast<uint32_t>(whole(path, f.at("sums_crc32c")))};
    if (file.name.empty() || file.name.find('/') != std::string::npos || file.name[0] == '.')
      refuse_manifest(path, "names the file '{}', which is not one of its directory", file.name);
    m.files.push_back(std::move(file));
  }
}

void parse_tensors(Manifest& m, const Json& tensors, const std::string& path) {
  for (const auto& [name, t] : tensors.items()) {
    ManifestTensor& tensor = m.tensors[name];
    tensor.shape.dtype = dtype_of(path, name, t.at("dtype"));
    tensor.shape.dims = t.at("dims").get<std::vector<std::string>>();
    tensor.shape.sizes = wholes(path, t.at("sizes"));
    for (const Json& p : t.at("pieces")) {
      const int64_t file = whole(path, p.at("file"));
      if (file < 0 || file >= std::ssize(m.files))
        refuse_manifest(path, "has a piece of tensor '{}' in file {} of {}", name, file,
                        m.files.size());
      tensor.pieces.push_back(
          {static_cast<int>(file), wholes(path, p.at("offset")), wholes(path, p.at("extent"))});
    }
    require_sizes(path, name, tensor);
    require_grid(path, name, tensor);
  }
}

std::string read_text(const std::string& path) {
  int64_t bytes = 0;
  open_to_read("checkpoint", path, bytes);
  if (bytes > kMostBytes)
    refuse_manifest(path, "has {} bytes; at most {} are read", bytes, kMostBytes);
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Length of a regular file, or -1.
int64_t length_of(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) ? status.st_size : -1;
}

}  // namespace

std::string to_text(const Manifest& m) {
  Json files = Json::array(), tensors = Json::object();
  for (const ManifestFile& f : m.files) {
    files.push_back({{"name", f.name},
                     {"bytes", f.bytes},
                     {"header_crc32c", f.header_crc},
                     {"sums_crc32c", f.sums_crc}});
  }
  for (const auto& [name, t] : m.tensors) {
    Json pieces = Json::array();
    for (const FilePiece& p : t.pieces)
      pieces.push_back({{"file", p.file}, {"offset", p.offset}, {"extent", p.extent}});
    tensors[name] = {{"dtype", to_string(t.shape.dtype)},
                     {"dims", t.shape.dims},
                     {"sizes", t.shape.sizes},
                     {"pieces", std::move(pieces)}};
  }
  const Json all = {{"format_version", kManifestVersion},
                    {"step", m.step},
                    {"serial", m.serial},
                    {"metadata", m.metadata},
                    {"files", std::move(files)},
                    {"tensors", std::move(tensors)}};
  const std::string inner = all.dump(-1, ' ', false, Json::error_handler_t::replace);
  return fmt::format("{}{:08x}{}{}{}", kHead, crc32c(inner.data(), inner.size()), kMiddle, inner,
                     kTail);
}

Manifest parse_manifest(const std::string& text, const std::string& path) {
  const size_t begin = kHead.size() + 8 + kMiddle.size();
  const bool framed = text.size() >= begin + kTail.size() && text.starts_with(kHead) &&
                      text.compare(kHead.size() + 8, kMiddle.size(), kMiddle) == 0 &&
                      text.ends_with(kTail);
  if (!framed) refuse_manifest(path, "is damaged or cut ({} bytes)", text.size());
  const size_t length = text.size() - begin - kTail.size();
  const std::string sum = fmt::format("{:08x}", crc32c(text.data() + begin, length));
  if (text.compare(kHead.size(), 8, sum) != 0)
    refuse_manifest(path, "is damaged: its checksum is {}, but it says {}", sum,
                    text.substr(kHead.size(), 8));
  Manifest m;
  try {
    const Json all = Json::parse(text.begin() + static_cast<long>(begin),
                                 text.begin() + static_cast<long>(begin + length));
    const int64_t version = whole(path, all.at("format_version"));
    if (version != kManifestVersion)
      refuse_manifest(
          path,
          "has the format version {}, but this build reads {}; use the version of Tessera that "
          "wrote it",
          version, kManifestVersion);
    m.step = whole(path, all.at("step"));
    m.serial = whole(path, all.at("serial"));
    m.metadata = all.at("metadata").get<std::map<std::string, std::string>>();
    if (m.step < 0 || m.serial < 0)
      refuse_manifest(path, "has the step {}, serial {}", m.step, m.serial);
    parse_files(m, all.at("files"), path);
    parse_tensors(m, all.at("tensors"), path);
  } catch (const Json::exception& e) {
    refuse_manifest(path, "is not one: {}", e.what());
  }
  return m;
}

std::string file_path(const std::string& checkpoint, const Manifest& manifest, int file) {
  if (!manifest.has_checksums) return checkpoint;
  return (std::filesystem::path(checkpoint) / manifest.files[static_cast<size_t>(file)].name)
      .string();
}

Manifest read_manifest(const std::string& checkpoint) {
  if (!is_folder(checkpoint)) return manifest_of_one_file(checkpoint);
  const std::string path = (std::filesystem::path(checkpoint) / kManifestName).string();
  Manifest m = parse_manifest(read_text(path), path);
  for (size_t f = 0; f < m.files.size(); ++f) {
    const int64_t length = length_of(file_path(checkpoint, m, static_cast<int>(f)));
    if (length == m.files[f].bytes) continue;
    fail(ErrorKind::io, "[checkpoint] '{}' {}; this checkpoint cannot be used",
         file_path(checkpoint, m, static_cast<int>(f)),
         length < 0 ? std::string("is missing")
                    : fmt::format("has {} bytes instead of {}", length, m.files[f].bytes));
  }
  return m;
}

}  // namespace tessera
