// The reader trusts the header only as far as the file's length confirms it. Sorted by position,
// the tensors must tile the bytes after the header exactly. That excludes overlaps, gaps, and
// truncated or extended files.
#include "tessera/safetensors.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/fail.h"
#include "io/file.h"
#include "io/safetensors_format.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements are stored little-endian");

namespace tessera {

namespace {

using Json = nlohmann::json;
using namespace safetensors;

/// Throws an io error about one file.
template <class... Args>
[[noreturn]] void refuse(const std::string& path, fmt::format_string<Args...> text,
                         Args&&... args) {
  fail(ErrorKind::io, "[safetensors] '{}': {}", path,
       fmt::format(text, std::forward<Args>(args)...));
}

/// Reads exactly `bytes` at `position`.
void read_at(int fd, const std::string& path, int64_t position, int64_t bytes, void* to) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = pread(fd, at, static_cast<size_t>(bytes), position);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      refuse(path, "cannot read {} bytes at {}: {}", bytes, position, system_message(errno));
    }
    if (got == 0) {
      refuse(path, "ends at byte {} while it is read; did another process cut it?", position);
    }
    at += got;
    position += got;
    bytes -= got;
  }
}

/// The value of a JSON integer in [0, 2^63).
int64_t count_of(const Json& value, const std::string& path, const std::string& tensor,
                 const char* what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT64_MAX}) {
    refuse(path, "{} of tensor '{}' is {}, not an integer from 0 to 2^63 - 1", what, tensor,
           value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 80));
  }
  return value.get<int64_t>();
}

TensorInfo parse_tensor(const std::string& path, const std::string& name, const Json& entry) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets")) {
    refuse(path, "the header entry of tensor '{}' needs dtype, shape and data_offsets", name);
  }
  TensorInfo info;
  info.name = name;
  const Json &dtype = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
  const std::string dtype_name = dtype.is_string() ? dtype.get<std::string>() : "";
  const auto known = std::find_if(std::begin(kTypes), std::end(kTypes),
                                  [&](const TypeName& t) { return t.name == dtype_name; });
  if (known == std::end(kTypes)) {
    refuse(path, "tensor '{}' has the dtype '{}'; Tessera reads {}; convert the file first", name,
           dtype_name, type_names());
  }
  info.dtype = known->dtype;
  if (!shape.is_array() || !offsets.is_array() || offsets.size() != 2) {
    refuse(path, "the shape of tensor '{}' must be a list, and its data_offsets a list of two",
           name);
  }
  for (const Json& size : shape) info.sizes.push_back(count_of(size, path, name, "a size"));
  info.begin = count_of(offsets[0], path, name, "the begin offset");
  info.end = count_of(offsets[1], path, name, "the end offset");
  const int64_t expected = byte_count(info);
  if (expected < 0 || info.begin > info.end || info.bytes() != expected) {
    refuse(path, "tensor '{}' is {} of sizes [{}], {}, but its data_offsets are {} to {}", name,
           dtype_name, fmt::join(info.sizes, ", "),
           expected < 0 ? "too large" : fmt::format("{} bytes", expected), info.begin, info.end);
  }
  return info;
}

/// Throws unless the tensors, ordered by position, tile `bytes` bytes.
void require_tiling(const std::string& path, const std::vector<TensorInfo>& tensors,
                    int64_t bytes) {
  int64_t at = 0;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& t : tensors) {
    if (t.end > bytes) {
      refuse(path,
             "tensor '{}' has the bytes {} to {}, but only {} follow the header; the file is "
             "truncated",
             t.name, t.begin, t.end, bytes);
    }
    if (t.begin < at) {
      refuse(path, "tensor '{}' begins at byte {}, inside of '{}', which ends at {}", t.name,
             t.begin, previous->name, at);
    }
    if (t.begin > at) {
      refuse(path, "the bytes {} to {} in front of tensor '{}' belong to no tensor", at, t.begin,
             t.name);
    }
    at = t.end;
    previous = &t;
  }
  if (at < bytes) {
    refuse(path, "the bytes {} to {} at the end of the file belong to no tensor", at, bytes);
  }
}

/// Parses a header by events, so that no more than one of its entries is in memory as JSON. An
/// object that has a key twice is refused: a tensor must not vanish that way.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  static constexpr int kMostDepth = 8;
  /// Gets each entry of the header.
  using Take = std::function<void(const std::string& name, const Json& entry)>;
  explicit HeaderReader(Take take) : take_(std::move(take)) {}

  std::string twice;  ///< a key that its object has twice
  std::string error;  ///< why the text is no JSON
  bool is_deep = false, is_object = false;

  bool key(string_t& name) override {
    const bool is_new = depth_ == 1 ? names_.insert(name).second : !open_.back()->contains(name);
    if (!is_new && twice.empty()) twice = name;
    (depth_ == 1 ? name_ : key_) = name;
    return true;
  }
  bool start_object(size_t) override {
    if (depth_ == 0) {
      is_object = true;
      return enter();
    }
    open_.push_back(put(Json::object()));
    return enter();
  }
  bool end_object() override { return leave(); }
  bool start_array(size_t) override {
    open_.push_back(put(Json::array()));
    return enter();
  }
  bool end_array() override { return leave(); }
  bool null() override { return scalar(nullptr); }
  bool boolean(bool value) override { return scalar(value); }
  bool number_integer(number_integer_t value) override { return scalar(value); }
  bool number_unsigned(number_unsigned_t value) override { return scalar(value); }
  bool number_float(number_float_t value, const string_t&) override { return scalar(value); }
  bool string(string_t& value) override { return scalar(std::move(value)); }
  bool binary(binary_t&) override { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    error = e.what();
    return false;
  }

 private:
  bool enter() {
    is_deep = ++depth_ > kMostDepth;
    return !is_deep;
  }
  bool leave() {
    --depth_;
    if (!open_.empty()) open_.pop_back();
    return end_value();
  }
  bool scalar(Json value) {
    put(std::move(value));
    return end_value();
  }
  bool end_value() {
    if (is_object && depth_ == 1) take_(name_, entry_);
    return true;
  }
  /// Puts a value where the text has it, and returns its place.
  Json* put(Json value) {
    if (open_.empty()) {
      entry_ = std::move(value);
      return &entry_;
    }
    Json& in = *open_.back();
    if (in.is_object()) return &(in[key_] = std::move(value));
    in.push_back(std::move(value));
    return &in.back();
  }

  Take take_;
  std::unordered_set<std::string> names_;
  std::string name_, key_;
  Json entry_;               ///< the one being read
  std::vector<Json*> open_;  ///< its open objects and arrays
  int depth_ = 0;
};

void read_entries(const std::string& path, const std::string& text, HeaderReader::Take take) {
  HeaderReader reader(std::move(take));
  Json::sax_parse(text, &reader);
  if (reader.is_deep)
    refuse(path, "its header nests more than {} brackets", HeaderReader::kMostDepth);
  if (!reader.error.empty()) {
    refuse(path,
           "the header of {} bytes is not JSON ({}); the file is damaged or of another format",
           text.size(), reader.error);
  }
  if (!reader.is_object) refuse(path, "the header of {} bytes is not a JSON object", text.size());
  if (!reader.twice.empty()) refuse(path, "the header names '{}' twice", reader.twice);
}

}  // namespace

struct SafetensorsReader::State {
  std::string path;
  FileHandle file;
  int64_t data_begin = 0;
  std::map<std::string, std::string> metadata;
  std::vector<TensorInfo> tensors;
  std::map<std::string, size_t> index;

  std::string read_header(int64_t file_bytes) {
    if (file_bytes < 8) {
      refuse(path, "has {} bytes, but a safetensors file begins with 8 bytes of header length",
             file_bytes);
    }
    uint64_t header_bytes = 0;
    read_at(file.get(), path, 0, 8, &header_bytes);
    if (header_bytes > static_cast<uint64_t>(kMaxHeader)) {
      refuse(path,
             "announces a header of {} bytes; at most {} are allowed; is it a safetensors file?",
             header_bytes, kMaxHeader);
    }
    if (static_cast<int64_t>(header_bytes) > file_bytes - 8) {
      refuse(path,
             "announces a header of {} bytes but has only {} behind its length; it is truncated",
             header_bytes, file_bytes - 8);
    }
    std::string text(header_bytes, '\0');
    read_at(file.get(), path, 8, static_cast<int64_t>(header_bytes), text.data());
    data_begin = 8 + static_cast<int64_t>(header_bytes);
    return text;
  }

  void read_metadata(const Json& entries) {
    if (entries.is_null()) return;  // as safetensors' own library has it
    if (!entries.is_object()) refuse(path, "its {} is not a JSON object", kMetadata);
    for (const auto& [key, value] : entries.items()) {
      if (!value.is_string())
        refuse(path, "the value of '{}' in {} is not a string", key, kMetadata);
      metadata[key] = value.get<std::string>();
    }
  }
};

SafetensorsReader::SafetensorsReader(const std::string& path) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.path = path;
  int64_t bytes = 0;
  s.file = open_to_read("safetensors", path, bytes);
  read_entries(path, s.read_header(bytes), [&](const std::string& name, const Json& entry) {
    if (name == kMetadata) {
      s.read_metadata(entry);
    } else {
      s.tensors.push_back(parse_tensor(path, name, entry));
    }
  });
  std::sort(s.tensors.begin(), s.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  require_tiling(path, s.tensors, bytes - s.data_begin);
  for (size_t i = 0; i < s.tensors.size(); ++i) s.index[s.tensors[i].name] = i;
}

SafetensorsReader::~SafetensorsReader() = default;
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;
SafetensorsReader& SafetensorsReader::operator=(SafetensorsReader&&) noexcept = default;

const std::string& SafetensorsReader::path() const { return state_->path; }
const std::map<std::string, std::string>& SafetensorsReader::metadata() const {
  return state_->metadata;
}
const std::vector<TensorInfo>& SafetensorsReader::tensors() const { return state_->tensors; }

const TensorInfo* SafetensorsReader::find(const std::string& name) const {
  const auto it = state_->index.find(name);
  return it == state_->index.end() ? nullptr : &state_->tensors[it->second];
}

const TensorInfo& SafetensorsReader::tensor(const std::string& name) const {
  if (const TensorInfo* found = find(name)) return *found;
  std::vector<std::string> names;
  for (const TensorInfo& t : state_->tensors) names.push_back(t.name);
  refuse(state_->path, "holds no tensor '{}'{}", name, suggestion(name, names));
}

void SafetensorsReader::read(const TensorInfo& tensor, int64_t offset, int64_t bytes,
                             void* to) const {
  TESSERA_REQUIRE(
      offset >= 0 && bytes >= 0 && offset <= tensor.bytes() && bytes <= tensor.bytes() - offset,
      "[safetensors] bytes {} to {} of tensor '{}' in '{}', which has {}", offset, offset + bytes,
      tensor.name, state_->path, tensor.bytes());
  read_at(state_->file.get(), state_->path, state_->data_begin + tensor.begin + offset, bytes, to);
}

int64_t SafetensorsReader::data_begin() const { return state_->data_begin; }

void SafetensorsReader::read_file(int64_t position, int64_t bytes, void* to) const {
  read_at(state_->file.get(), state_->path, position, bytes, to);
}

Array SafetensorsReader::read(const std::string& name) const {
  const TensorInfo& info = tensor(name);
  std::vector<std::string> dims;
  for (size_t d = 0; d < info.sizes.size(); ++d) dims.push_back(fmt::format("dim{}", d));
  Array array(info.dtype, dims, info.sizes);
  read(info, 0, info.bytes(), array.bytes.data());
  return array;
}

}  // namespace tessera
