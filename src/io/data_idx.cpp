// An IDX file has a big-endian magic number (two zero bytes, the element type, the number of dims),
// the sizes as big-endian uint32, and the elements in row-major order. zlib reads plain and gzip
// files. The sizes are not trusted: elements are read in pieces, so memory grows with the actual
// file.
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/fail.h"
#include "io/file.h"
#include "io/fingerprint.h"
#include "tessera/data.h"

namespace tessera {

namespace {

constexpr uint32_t kImages = 0x00000803;  // uint8, three dims
constexpr uint32_t kLabels = 0x00000801;  // uint8, one dim
constexpr uint32_t kChannelImages = 0x00000804;

/// A file read through zlib.
class IdxFile {
 public:
  explicit IdxFile(const std::string& path) : path_(path) {
    int64_t bytes = 0;
    open_to_read("data", path, bytes);
    if (bytes == 0) {
      fail(ErrorKind::io, "[data] '{}' is empty; an IDX file begins with a magic number", path);
    }
    file_ = gzopen(path.c_str(), "rb");
    if (!file_) fail(ErrorKind::io, "[data] cannot open '{}' with zlib: out of memory", path);
  }
  ~IdxFile() { gzclose(file_); }
  IdxFile(const IdxFile&) = delete;

  /// Reads up to `bytes` bytes and returns the number read.
  int64_t read(void* to, int64_t bytes) {
    const int got = gzread(file_, to, static_cast<unsigned>(bytes));
    int code = Z_OK;
    const char* why = gzerror(file_, &code);
    // Z_BUF_ERROR: the gzip stream ends early. What was read counts as a short file.
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)) {
      fail(ErrorKind::io, "[data] cannot decompress '{}': {}; the file is damaged, fetch it again",
           path_, why);
    }
    return got;
  }

  uint32_t read_number(const char* what) {
    uint8_t b[4];
    if (const int64_t got = read(b, 4); got != 4) {
      fail(
          ErrorKind::io,
          "[data] '{}' ends within the {} of its IDX header; the file is truncated, fetch it again",
          path_, what);
    }
    return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | uint32_t{b[3]};
  }

  /// Whether the file begins with `other`, which may be in the place of `expected`; 0: nothing may.
  bool require_magic(uint32_t expected, const char* what, uint32_t other = 0) {
    const uint32_t magic = read_number("magic number");
    if (other != 0 && magic == other) return true;
    if (magic != expected) {
      fail(ErrorKind::io,
           "[data] '{}' begins with {:#010x}, but an IDX file of {} begins with {:#010x}{}", path_,
           magic, what, expected,
           magic == kImages || magic == kLabels ? "; are images and labels exchanged?"
                                                : "; it is not an IDX file of uint8");
    }
    return false;
  }

  /// Reads all elements: there must be exactly as many as the product of `sizes`.
  std::vector<uint8_t> read_elements(const std::vector<uint32_t>& sizes) {
    unsigned __int128 product = 1;
    for (uint32_t s : sizes) product *= s;
    const auto expected = static_cast<int64_t>(std::min<unsigned __int128>(product, INT64_MAX));
    constexpr int64_t kLeast = 1 << 16, kMost = 1 << 20;
    std::vector<uint8_t> bytes;
    while (static_cast<int64_t>(bytes.size()) < expected) {
      const auto before = static_cast<int64_t>(bytes.size());
      const int64_t want = std::min(std::clamp(before, kLeast, kMost), expected - before);
      bytes.resize(static_cast<size_t>(before + want));
      const int64_t got = read(bytes.data() + before, want);
      if (got < want) {
        fail(ErrorKind::io,
             "[data] '{}' should hold {} = {} bytes behind its header but has {}; the file is "
             "truncated, fetch it again",
             path_, fmt::join(sizes, " x "), expected, before + got);
      }
    }
    uint8_t extra;
    if (read(&extra, 1) != 0) {
      fail(ErrorKind::io, "[data] '{}' has more than the {} = {} bytes that its header promises",
           path_, fmt::join(sizes, " x "), expected);
    }
    return bytes;
  }

 private:
  std::string path_;
  gzFile file_ = nullptr;
};

}  // namespace

IdxData::IdxData(const std::string& images, const std::string& labels, const IdxOptions& options) {
  TESSERA_REQUIRE(options.image_dtype == DType::float32 || options.image_dtype == DType::uint8,
                  "[data] images as {}; they are read as float32 (scaled to 0 .. 1) or uint8",
                  to_string(options.image_dtype));
  IdxFile image_file(images);
  const bool has_channels = image_file.require_magic(kImages, "images", kChannelImages);
  const uint32_t count = image_file.read_number("number of images");
  const uint32_t channels = has_channels ? image_file.read_number("number of channels") : 1;
  const uint32_t rows = image_file.read_number("number of rows");
  const uint32_t cols = image_file.read_number("number of columns");
  if (count == 0 || channels == 0 || rows == 0 || cols == 0) {
    fail(ErrorKind::io, "[data] '{}' holds {} images of {}{} x {}; nothing can be learnt from it",
         images, count, has_channels ? fmt::format("{} x ", channels) : "", rows, cols);
  }
  IdxFile label_file(labels);
  label_file.require_magic(kLabels, "labels");
  const uint32_t label_count = label_file.read_number("number of labels");
  if (label_count != count) {
    fail(ErrorKind::io,
         "[data] '{}' has {} images but '{}' has {} labels; give two files of one data set", images,
         count, labels, label_count);
  }
  images_ =
      image_file.read_elements(has_channels ? std::vector<uint32_t>{count, channels, rows, cols}
                                            : std::vector<uint32_t>{count, rows, cols});
  labels_ = label_file.read_elements({count});
  channels_ = channels;
  rows_ = rows;
  cols_ = cols;
  std::vector<Dim> dims = {Dim(options.rows, rows_), Dim(options.cols, cols_)};
  if (has_channels) dims.insert(dims.begin(), Dim(options.channels, channels_));
  fields_ = {{options.images, options.image_dtype, dims}, {options.labels, DType::int32, {}}};
}

void IdxData::read(int64_t example, int field, const DataBox& box) const {
  if (field == 1) {
    *static_cast<int32_t*>(box.data) = labels_[static_cast<size_t>(example)];
    return;
  }
  const size_t y = box.extent.size() - 2, x = y + 1;
  const int64_t channels = y == 0 ? 1 : box.extent[0], first = y == 0 ? 0 : box.offset[0],
                stride = y == 0 ? 0 : box.strides[0];
  for (int64_t row = 0; row < channels * box.extent[y]; ++row) {
    const int64_t c = row / box.extent[y], i = row % box.extent[y];
    const int64_t at = (example * channels_ + first + c) * rows_ + box.offset[y] + i;
    const uint8_t* from = images_.data() + at * cols_ + box.offset[x];
    const int64_t to = c * stride + i * box.strides[y];
    for (int64_t j = 0; j < box.extent[x]; ++j) {
      const int64_t place = to + j * box.strides[x];
      if (fields_[0].dtype == DType::uint8) {
        static_cast<uint8_t*>(box.data)[place] = from[j];
      } else {
        static_cast<float*>(box.data)[place] = static_cast<float>(from[j]) / 255.0f;
      }
    }
  }
}

std::string IdxData::fingerprint() const {
  const auto of = [](const std::vector<uint8_t>& held) {
    return fingerprint_of(reinterpret_cast<const std::byte*>(held.data()), std::ssize(held));
  };
  return fmt::format("images {}; labels {}", of(images_), of(labels_));
}

}  // namespace tessera
