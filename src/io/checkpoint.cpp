// A save begins with one agreement: the root process sends the name of a new directory. Then each
// process works alone: it copies slices into chunks of memory, and a thread writes these to the
// files of its ranks. The root's thread waits for the files of all ranks, reads their headers and
// writes the manifest. Success is agreed on later, at the next save or at the end.
#include "tessera/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/fail.h"
#include "base/files.h"
#include "io/agree.h"
#include "io/background.h"
#include "io/checkpoint_files.h"
#include "io/shard.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string to_text(const std::vector<Checkpoint>& all) {
  Json list = Json::array();
  for (const Checkpoint& c : all)
    list.push_back(
        {{"path", c.path}, {"step", c.step}, {"metadata", c.metadata}, {"warning", c.warning}});
  return list.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<Checkpoint> from_text(const std::string& text) {
  std::vector<Checkpoint> all;
  for (const Json& c : Json::parse(text))
    all.push_back({c["path"], c["step"], c["metadata"], c["warning"]});
  return all;
}

/// The data that a local rank writes: its pieces and their slices.
struct RankPart {
  int rank = 0;
  std::vector<ShardPiece> pieces;
  std::vector<Slice> slices;
};

int64_t bytes_of(const Slice& slice) {
  int64_t bytes = size_of(slice.dtype);
  for (int64_t v : slice.valid) bytes *= v;
  return bytes;
}

std::vector<RankPart> parts_of(Session& session) {
  std::vector<RankPart> parts;
  for (const std::string& name : session.program().stored_names()) {
    const Array shape = session.shape_of(name);
    const std::vector<Slice> slices = session.slices(name);
    parts.resize(slices.size());
    for (size_t r = 0; r < slices.size(); ++r) {
      parts[r].rank = slices[r].rank;
      if (!slices[r].is_owner || bytes_of(slices[r]) == 0) continue;
      parts[r].pieces.push_back({name, shape, {0, slices[r].offset, slices[r].valid}});
      parts[r].slices.push_back(slices[r]);
    }
  }
  return parts;
}

/// Calls take(data, bytes) for the contiguous runs of a slice, in row-major order.
template <class Take>
void each_run(const Slice& slice, Take take) {
  const int64_t item = size_of(slice.dtype);
  size_t inner = slice.valid.size();
  int64_t run = 1;
  while (inner > 0 && (slice.strides[inner - 1] == run || slice.valid[inner - 1] == 1))
    run *= slice.valid[--inner];
  std::vector<int64_t> index(inner, 0);
  for (;;) {
    int64_t at = 0;
    for (size_t d = 0; d < inner; ++d) at += index[d] * slice.strides[d];
    take(static_cast<const std::byte*>(slice.data) + at * item, run * item);
    size_t d = inner;
    while (d > 0 && ++index[d - 1] == slice.valid[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

/// A stream of bytes into a rank's file, written by the background thread.
class StagedFile {
 public:
  StagedFile(Background& background, std::string path, const std::vector<ShardPiece>& pieces)
      : background_(background), file_(std::make_shared<std::unique_ptr<ShardWriter>>()) {
    background_.push([file = file_, path = std::move(path), pieces] {
      *file = std::make_unique<ShardWriter>(path, pieces);
    });
  }
  void append(const std::byte* data, int64_t bytes) {
    while (bytes > 0) {
      if (chunk_ == nullptr) chunk_ = background_.take_chunk();
      const int64_t part = std::min(bytes, Background::kChunk - used_);
      std::memcpy(chunk_ + used_, data, static_cast<size_t>(part));
      used_ += part;
      data += part;
      bytes -= part;
      if (used_ == Background::kChunk) flush();
    }
  }
  /// Call after the last append().
  void end() {
    if (chunk_ != nullptr) flush();
  }
  void finish() {
    background_.push([file = file_] { (*file)->finish(); });
  }

 private:
  void flush() {
    background_.push([file = file_, chunk = chunk_, used = used_] { (*file)->append(chunk, used); },
                     chunk_);
    chunk_ = nullptr;
    used_ = 0;
  }
  Background& background_;
  std::shared_ptr<std::unique_ptr<ShardWriter>> file_;
  std::byte* chunk_ = nullptr;
  int64_t used_ = 0;
};

}  // namespace

struct Checkpoints::State {
  Cluster& cluster;
  std::string directory;
  int keep;
  DirectoryLock lock;  // in the root process
  // The save in progress.
  bool saving = false;
  std::string temporary;             // its temporary directory
  Checkpoint checkpoint;             // in the root process: the checkpoint being saved
  std::atomic<bool> written{false};  // the files of this process are written
  std::atomic<SaveStage> stage{SaveStage::writing};
  Background background;  // last member, as its thread uses the others

  State(Cluster& c, std::string where, int number, int64_t staging)
      : cluster(c), directory(std::move(where)), keep(number), background(staging) {}

  /// Chooses the name of a new checkpoint and makes its temporary directory. Root only.
  std::string prepare(int64_t step) {
    const int64_t serial = next_serial(directory);
    checkpoint.path = new_checkpoint_path(directory, step);
    checkpoint.metadata[kVersionKey] = std::to_string(kManifestVersion);
    checkpoint.metadata[kStepKey] = std::to_string(step);
    checkpoint.metadata[kSerialKey] = std::to_string(serial);
    const std::string path = checkpoint.path + fmt::format(".tmp-{}", getpid());
    std::error_code error;
    fs::remove_all(path, error);
    const bool is_new = fs::create_directory(path, error);
    if (!is_new && !error) error = std::make_error_code(std::errc::file_exists);
    if (error)
      fail(
          ErrorKind::io,
          "[checkpoint] cannot make the directory '{}': {}; check that '{}' exists, can be written "
          "and has room",
          path, error.message(), directory);
    return path;
  }

  /// Runs in the background thread of the root process.
  void publish(const std::vector<int>& ranks) {
    std::vector<std::string> names;
    for (int rank : ranks) names.push_back(shard_name(rank));
    if (!wait_for_files(temporary, names, stage)) return;
    checkpoint.warning = publish_checkpoint(temporary, names, checkpoint, directory, keep);
  }

  /// Waits until ready() is true in every process. Collective.
  template <class Ready>
  void wait_for_all(Ready ready) {
    for (bool all = false; !all;) {
      const bool mine = ready();
      if (!mine) background.wait(0.02);
      const std::vector<double> flags = cluster.gather(
          std::vector<double>(static_cast<size_t>(cluster.local_ranks()), ready() ? 1.0 : 0.0));
      all = std::all_of(flags.begin(), flags.end(), [](double f) { return f != 0; });
    }
  }
};

Checkpoints::Checkpoints(Cluster& cluster, const std::string& directory, int keep, int64_t staging)
    : state_(std::make_unique<State>(cluster, directory, keep, staging)) {
  TESSERA_REQUIRE(keep >= 1, "[checkpoint] keep = {}; at least 1 checkpoint must be kept", keep);
  run_together(cluster, [&] {
    if (!cluster.is_root()) return;
    make_folders(directory);
    state_->lock = lock_directory(directory);
    remove_leftovers(directory);
  });
}

Checkpoints::~Checkpoints() { state_->stage = SaveStage::cancelled; }

bool Checkpoints::is_saving() const { return state_->saving && !state_->background.wait(0); }

bool Checkpoints::has_failed() const { return state_->saving && state_->background.has_failed(); }

int64_t Checkpoints::owned_bytes(Session& session) {
  int64_t bytes = 0;
  for (const RankPart& part : parts_of(session)) {
    for (const Slice& slice : part.slices) bytes += bytes_of(slice);
  }
  return bytes;
}

void Checkpoints::start(Session& session, int64_t step,
                        const std::map<std::string, std::string>& extra) {
  State& s = *state_;
  TESSERA_REQUIRE(step >= 0, "[checkpoint] cannot save the step {}; steps begin at 0", step);
  for (const char* key : {kVersionKey, kStepKey, kSerialKey, kDimsKey}) {
    TESSERA_REQUIRE(!extra.count(key),
                    "[checkpoint] the metadata key '{}' is written by save() itself", key);
  }
  finish();
  const std::vector<RankPart> parts = parts_of(session);
  std::vector<double> pieces;
  for (const RankPart& part : parts) pieces.push_back(static_cast<double>(part.pieces.size()));
  pieces = s.cluster.gather(pieces);
  s.checkpoint = {"", step, extra, ""};
  s.temporary.clear();
  run_together(s.cluster, [&] {
    if (s.cluster.is_root()) s.temporary = s.prepare(step);
  });
  s.temporary = s.cluster.first_text(s.temporary);
  s.saving = true;
  s.written = false;
  s.stage = SaveStage::writing;
  // All files are finished together, so that file systems need few journal commits.
  std::vector<StagedFile> files;
  for (const RankPart& part : parts) {
    if (part.pieces.empty()) continue;
    StagedFile& file = files.emplace_back(
        s.background, (fs::path(s.temporary) / shard_name(part.rank)).string(), part.pieces);
    for (const Slice& slice : part.slices)
      each_run(slice, [&](const std::byte* data, int64_t bytes) { file.append(data, bytes); });
    file.end();
  }
  for (StagedFile& file : files) file.finish();
  s.background.push([&s] { s.written = true; });
  if (!s.cluster.is_root()) return;
  std::vector<int> ranks;
  for (size_t r = 0; r < pieces.size(); ++r) {
    if (pieces[r] > 0) ranks.push_back(static_cast<int>(r));
  }
  s.background.push([&s, ranks] { s.publish(ranks); });
}

std::optional<Checkpoint> Checkpoints::finish() {
  State& s = *state_;
  if (!s.saving) return std::nullopt;
  s.saving = false;
  // After a failed task `written` stays false, but no task is pending.
  s.wait_for_all([&s] { return s.written || s.background.wait(0); });
  const std::vector<double> bad = s.cluster.gather(
      std::vector<double>(static_cast<size_t>(s.cluster.local_ranks()), s.written ? 0.0 : 1.0));
  const bool failed = std::any_of(bad.begin(), bad.end(), [](double b) { return b != 0; });
  s.stage = failed ? SaveStage::cancelled : SaveStage::written;
  s.wait_for_all([&s] { return s.background.wait(0); });
  const std::exception_ptr failure = s.background.take_failure();
  run_together(s.cluster, [&] {
    std::error_code ignored;
    if (s.cluster.is_root() && (failed || failure)) fs::remove_all(s.temporary, ignored);
    if (failure) std::rethrow_exception(failure);
  });
  const std::string text =
      s.cluster.first_text(s.cluster.is_root() ? to_text({s.checkpoint}) : std::string());
  return from_text(text)[0];
}

void Checkpoints::settle(double seconds) {
  State& s = *state_;
  if (!s.saving || s.temporary.empty()) return;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::error_code ignored;
  bool done = false;
  // The root's thread publishes; other processes see that the directory was renamed.
  while (!done && std::chrono::steady_clock::now() < end) {
    done = s.background.wait(0.02) && (s.cluster.is_root() || !is_taken(s.temporary));
    if (!done) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (done && s.cluster.is_root()) fs::remove_all(s.temporary, ignored);  // if publishing failed
}

Checkpoint Checkpoints::save(Session& session, int64_t step,
                             const std::map<std::string, std::string>& extra) {
  start(session, step, extra);
  return *finish();
}

std::optional<Checkpoint> Checkpoints::latest() {
  State& s = *state_;
  std::string text;
  run_together(s.cluster, [&] {
    if (!s.cluster.is_root()) return;
    if (const auto found = find_latest(s.directory)) text = to_text({*found});
  });
  text = s.cluster.first_text(text);
  if (text.empty()) return std::nullopt;
  return from_text(text)[0];
}

std::optional<Checkpoint> Checkpoints::load_latest(Session& session, bool fitting) {
  State& s = *state_;
  std::string text;
  run_together(s.cluster, [&] {
    if (s.cluster.is_root()) text = to_text(find_checkpoints(s.directory));
  });
  std::string warning;
  std::optional<Error> first;
  for (const Checkpoint& candidate : from_text(s.cluster.first_text(text))) {
    try {
      Checkpoint loaded = fitting ? load_fitting(session, candidate.path)
                                  : load_checkpoint(session, candidate.path);
      for (const std::string& more : {candidate.warning, warning}) {
        if (!more.empty()) loaded.warning += (loaded.warning.empty() ? "" : "; ") + more;
      }
      return loaded;
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::io) throw;
      if (!first) first = e;
      warning += fmt::format("{}cannot be loaded: {}", warning.empty() ? "" : "; ", e.what());
    }
  }
  if (first) throw *first;
  return std::nullopt;
}

}  // namespace tessera
