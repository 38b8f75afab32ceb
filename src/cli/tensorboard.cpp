#include "cli/tensorboard.h"

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>

#include "base/crc32c.h"
#include "base/fail.h"
#include "base/files.h"

namespace tessera::cli {

namespace {

/// Encodes protocol buffer fields; assumes a little-endian machine.
class Message {
 public:
  void number(int field, double value) { fixed(field, 1, value); }
  void number(int field, float value) { fixed(field, 5, value); }
  void integer(int field, uint64_t value) {
    varint(static_cast<uint64_t>(field) << 3);
    varint(value);
  }
  void bytes(int field, const std::string& value) {
    varint(static_cast<uint64_t>(field) << 3 | 2);
    varint(value.size());
    text_ += value;
  }
  const std::string& text() const { return text_; }

 private:
  template <class T>
  void fixed(int field, int type, T value) {
    varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(type));
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void varint(uint64_t value) {
    for (; value >= 128; value >>= 7) text_ += static_cast<char>(value | 128);
    text_ += static_cast<char>(value);
  }
  std::string text_;
};

uint32_t masked_crc(const void* data, size_t bytes) {
  const uint32_t crc = crc32c(data, bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

EventFile::EventFile(const std::string& folder) {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  make_folders(folder, "--tensorboard");
  path_ = (std::filesystem::path(folder) / fmt::format("events.out.tfevents.{:010}.{}.{}",
                                                       static_cast<int64_t>(seconds_now()), host,
                                                       getpid()))
              .string();
  std::FILE* const file = std::fopen(path_.c_str(), "wb");
  if (file == nullptr)
    fail(ErrorKind::io, "cannot write '{}'; choose another --tensorboard folder", path_);
  file_ = std::make_unique<LogFile>(path_, file);
  Message version;
  version.number(1, seconds_now());
  version.bytes(3, "brain.Event:2");
  write(version.text());
}

void EventFile::add(int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  Message summary;
  for (const auto& [tag, value] : scalars) {
    Message entry;
    entry.bytes(1, tag);
    entry.number(2, static_cast<float>(value));
    summary.bytes(1, entry.text());
  }
  add_summary(step, summary.text());
}

void EventFile::add_text(int64_t step, const std::string& tag, const std::string& text) {
  constexpr int kString = 7;  // DataType DT_STRING
  Message plugin, metadata, one, shape, tensor, entry, summary;
  plugin.bytes(1, "text");
  metadata.bytes(1, plugin.text());
  one.integer(1, 1);
  shape.bytes(2, one.text());
  tensor.integer(1, kString);
  tensor.bytes(2, shape.text());
  tensor.bytes(8, text);
  entry.bytes(1, tag);
  entry.bytes(8, tensor.text());
  entry.bytes(9, metadata.text());
  summary.bytes(1, entry.text());
  add_summary(step, summary.text());
}

void EventFile::add_summary(int64_t step, const std::string& summary) {
  Message event;
  event.number(1, seconds_now());
  event.integer(2, static_cast<uint64_t>(step));
  event.bytes(5, summary);
  write(event.text());
}

void EventFile::write(const std::string& event) {
  const uint64_t length = event.size();
  const uint32_t length_crc = masked_crc(&length, sizeof(length)),
                 crc = masked_crc(event.data(), event.size());
  std::string record;
  const auto add = [&](const auto& number) {
    record.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  add(length);
  add(length_crc);
  record += event;
  add(crc);
  file_->append(record);
}

}  // namespace tessera::cli
