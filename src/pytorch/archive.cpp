#include "pytorch/archive.h"

#include "base/fail.h"
#include "base/files.h"

#ifdef TESSERA_HAVE_LIBZIP
#include <zip.h>
#endif

namespace tessera::pytorch {

#ifdef TESSERA_HAVE_LIBZIP

namespace {
struct CloseEntry {
  void operator()(zip_file_t* entry) const { zip_fclose(entry); }
};
using Entry = std::unique_ptr<zip_file_t, CloseEntry>;

std::string zip_text(int code) {
  zip_error_t error;
  zip_error_init_with_code(&error, code);
  std::string text = zip_error_strerror(&error);
  zip_error_fini(&error);
  return text;
}
}  // namespace

struct Archive::State {
  ~State() {
    if (zip) zip_discard(zip);
  }
  zip_uint64_t find(const Archive& archive, const std::string& entry) const {
    const zip_int64_t at = zip_name_locate(zip, (folder + entry).c_str(), 0);
    if (at < 0) fail(ErrorKind::io, "[pytorch] '{}' has no entry '{}'", archive.path(), entry);
    return static_cast<zip_uint64_t>(at);
  }
  zip_stat_t describe(const Archive& archive, const std::string& entry) const {
    zip_stat_t about;
    constexpr zip_uint64_t kNeeded = ZIP_STAT_SIZE | ZIP_STAT_COMP_METHOD;
    if (zip_stat_index(zip, find(archive, entry), 0, &about) != 0 ||
        (about.valid & kNeeded) != kNeeded)
      fail(ErrorKind::io, "[pytorch] '{}' is damaged: its entry '{}' has no size", archive.path(),
           entry);
    return about;
  }

  zip_t* zip = nullptr;
  std::string folder;
};

Archive::Archive(const std::string& path) : path_(path), state_(std::make_unique<State>()) {
  if (!is_file(path)) fail(ErrorKind::io, "[pytorch] there is no file '{}'", path);
  int code = 0;
  state_->zip = zip_open(path.c_str(), ZIP_RDONLY | ZIP_CHECKCONS, &code);
  if (!state_->zip)
    fail(ErrorKind::io,
         "[pytorch] '{}' is no whole zip file, as torch.export.save() writes one: {}", path,
         zip_text(code));
  const char* first =
      zip_get_num_entries(state_->zip, 0) > 0 ? zip_get_name(state_->zip, 0, 0) : "";
  const std::string name = first ? first : "";
  state_->folder = name.substr(0, name.find('/') + 1);
}

bool Archive::has(const std::string& entry) const {
  return zip_name_locate(state_->zip, (state_->folder + entry).c_str(), 0) >= 0;
}

int64_t Archive::size(const std::string& entry) const {
  return static_cast<int64_t>(state_->describe(*this, entry).size);
}

std::string Archive::read(const std::string& entry) const {
  constexpr int64_t kPiece = 1 << 20;  // what a damaged header claims is not allocated at once
  const int64_t size = this->size(entry);
  const Entry file(zip_fopen_index(state_->zip, state_->find(*this, entry), 0));
  std::string bytes;
  zip_int64_t got = file ? 1 : -1;
  while (got > 0) {
    const size_t old = bytes.size();
    bytes.resize(old + kPiece);
    got = zip_fread(file.get(), bytes.data() + old, kPiece);
    bytes.resize(old + static_cast<size_t>(std::max<zip_int64_t>(got, 0)));
  }
  if (got < 0 || std::ssize(bytes) != size)
    fail(ErrorKind::io, "[pytorch] '{}' is damaged: its entry '{}' cannot be read{}", path_, entry,
         file ? fmt::format(": {}", zip_file_strerror(file.get())) : "");
  return bytes;
}

void Archive::read(const std::string& entry, int64_t offset, int64_t bytes, void* to) const {
  const zip_stat_t about = state_->describe(*this, entry);
  const auto size = static_cast<int64_t>(about.size);
  if (offset < 0 || bytes < 0 || offset > size - bytes)
    fail(ErrorKind::io,
         "[pytorch] '{}' is damaged: its entry '{}' has {} bytes, and bytes {} to {} "
         "of it are needed",
         path_, entry, size, offset, offset + bytes);
  if (about.comp_method != ZIP_CM_STORE) {
    read(entry).copy(static_cast<char*>(to), static_cast<size_t>(bytes),
                     static_cast<size_t>(offset));
    return;
  }
  const Entry file(zip_fopen_index(state_->zip, about.index, 0));
  if (!file || zip_fseek(file.get(), offset, SEEK_SET) != 0 ||
      zip_fread(file.get(), to, static_cast<zip_uint64_t>(bytes)) != bytes)
    fail(ErrorKind::io, "[pytorch] '{}' is damaged: its entry '{}' cannot be read", path_, entry);
}

#else

struct Archive::State {};
Archive::Archive(const std::string& path) : path_(path) {
  fail(ErrorKind::unsupported,
       "[pytorch] '{}' is a PyTorch program, which this build of Tessera cannot read: it was "
       "configured without libzip (libzip-dev)",
       path);
}
bool Archive::has(const std::string&) const { return false; }
int64_t Archive::size(const std::string&) const { return 0; }
std::string Archive::read(const std::string&) const { return ""; }
void Archive::read(const std::string&, int64_t, int64_t, void*) const {}

#endif

Archive::~Archive() = default;

}  // namespace tessera::pytorch
