#include "io/shard.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/crc32c.h"
#include "base/fail.h"
#include "base/files.h"

namespace tessera {

namespace {

using Json = nlohmann::json;
constexpr const char* kPieces = "pieces";

int64_t blocks_of(int64_t bytes) { return (bytes + kShardBlock - 1) / kShardBlock; }

uint32_t crc_of_sums(const std::vector<uint32_t>& sums) {
  return crc32c(sums.data(), sums.size() * sizeof(uint32_t));
}

uint32_t crc_of_header(const SafetensorsReader& file) {
  std::vector<std::byte> header(static_cast<size_t>(file.data_begin()));
  file.read_file(0, file.data_begin(), header.data());
  return crc32c(header.data(), header.size());
}

/// The checksums of a shard (its last tensor) and the number of bytes that they cover.
std::vector<uint32_t> read_sums(const SafetensorsReader& file, int64_t& covered) {
  const TensorInfo* info = file.find(kChecksums);
  const bool good = info && info == &file.tensors().back() && info->dtype == DType::int32 &&
                    info->bytes() == 4 * blocks_of(info->begin);
  if (!good)
    fail(ErrorKind::io, "[checkpoint] '{}' does not end with its checksums; it is damaged",
         file.path());
  covered = info->begin;
  std::vector<uint32_t> sums(static_cast<size_t>(blocks_of(covered)));
  file.read(*info, 0, info->bytes(), sums.data());
  return sums;
}

}  // namespace

ShardWriter::ShardWriter(const std::string& path, const std::vector<ShardPiece>& pieces) {
  Json places = Json::object();
  std::vector<TensorInfo> all;
  int64_t bytes = 0;
  for (const ShardPiece& p : pieces) {
    TensorInfo info;
    info.name = p.name;
    info.dtype = p.shape.dtype;
    info.sizes = p.piece.extent;
    int64_t piece_bytes = size_of(info.dtype);
    for (int64_t size : info.sizes) piece_bytes *= size;
    bytes += piece_bytes;
    info.end = piece_bytes;  // begin is 0: this is the length until the writer places it
    all.push_back(info);
    places[p.name] = {{"dims", p.shape.dims}, {"sizes", p.shape.sizes}, {"offset", p.piece.offset}};
  }
  TensorInfo sums;
  sums.name = kChecksums;
  sums.dtype = DType::int32;
  sums.sizes = {blocks_of(bytes)};
  all.push_back(sums);
  file_ = std::make_unique<SafetensorsWriter>(
      path, all,
      std::map<std::string, std::string>{{kPieces, places.dump()},
                                         {"block_bytes", fmt::format("{}", kShardBlock)}});
}

void ShardWriter::append(const std::byte* data, int64_t bytes) {
  for (int64_t at = 0; at < bytes;) {
    if (in_block_ == 0 && bytes - at >= kShardBlock) {
      const int64_t whole = (bytes - at) / kShardBlock;
      sums_.resize(sums_.size() + static_cast<size_t>(whole));
      crc32c_blocks(data + at, kShardBlock, static_cast<size_t>(whole),
                    sums_.data() + std::ssize(sums_) - whole);
      at += whole * kShardBlock;
      continue;
    }
    const int64_t part = std::min(bytes - at, kShardBlock - in_block_);
    crc_ = crc32c(data + at, static_cast<size_t>(part), crc_);
    at += part;
    if ((in_block_ += part) < kShardBlock) continue;
    sums_.push_back(crc_);
    crc_ = 0;
    in_block_ = 0;
  }
  file_->append(data, bytes);
}

void ShardWriter::finish() {
  if (in_block_ > 0) sums_.push_back(crc_);
  file_->write(kChecksums, sums_.data(), std::ssize(sums_) * 4);
  file_->finish(/*sync_name=*/false);
}

ShardReader::ShardReader(const std::string& checkpoint, const Manifest& manifest, int file)
    : file_(file_path(checkpoint, manifest, file)), checked_(manifest.has_checksums) {
  if (!checked_) return;
  const ManifestFile& expected = manifest.files[static_cast<size_t>(file)];
  if (crc_of_header(file_) != expected.header_crc)
    fail(ErrorKind::io, "[checkpoint] the header of '{}' is damaged: its checksum differs",
         file_.path());
  sums_ = read_sums(file_, covered_);
  if (crc_of_sums(sums_) != expected.sums_crc)
    fail(ErrorKind::io, "[checkpoint] the checksums at the end of '{}' are damaged", file_.path());
  held_.resize(kShardBlock);
}

int64_t ShardReader::block_bytes(int64_t block) const {
  return std::min(kShardBlock, covered_ - block * kShardBlock);
}

void ShardReader::refuse_block(int64_t block) const {
  const int64_t at = block * kShardBlock, bytes = block_bytes(block);
  std::string names;
  for (const TensorInfo& t : file_.tensors()) {
    if (t.begin < at + bytes && t.end > at && t.name != kChecksums)
      names += (names.empty() ? "'" : ", '") + t.name + "'";
    if (names.size() > 200) break;
  }
  fail(ErrorKind::io, "[checkpoint] '{}' is damaged in its bytes {} to {} (tensor {})",
       file_.path(), file_.data_begin() + at, file_.data_begin() + at + bytes, names);
}

void ShardReader::read_blocks(int64_t first, int64_t count, std::byte* to) const {
  const int64_t last = block_bytes(first + count - 1);
  file_.read_file(file_.data_begin() + first * kShardBlock, (count - 1) * kShardBlock + last, to);
  uint32_t sums[kAtOnce];
  const auto whole = static_cast<size_t>(last == kShardBlock ? count : count - 1);
  crc32c_blocks(to, kShardBlock, whole, sums);
  if (last < kShardBlock)
    sums[count - 1] = crc32c(to + (count - 1) * kShardBlock, static_cast<size_t>(last));
  for (int64_t b = 0; b < count; ++b) {
    if (sums[b] != sums_[static_cast<size_t>(first + b)]) refuse_block(first + b);
  }
}

void ShardReader::read(const TensorInfo& tensor, int64_t offset, int64_t bytes, std::byte* to) {
  if (!checked_) return file_.read(tensor, offset, bytes, to);
  int64_t at = tensor.begin + offset;
  while (bytes > 0) {
    const int64_t block = at / kShardBlock, inside = at % kShardBlock;
    int64_t whole = inside == 0 ? std::min(bytes / kShardBlock, kAtOnce) : 0;
    if (whole > 0) {  // directly to the destination
      read_blocks(block, whole, to);
      whole *= kShardBlock;
    } else {
      if (held_block_ != block) {
        held_block_ = -1;
        read_blocks(block, 1, held_.data());
        held_block_ = block;
      }
      whole = std::min(bytes, block_bytes(block) - inside);
      std::copy_n(held_.data() + inside, whole, to);
    }
    at += whole;
    to += whole;
    bytes -= whole;
  }
}

const TensorInfo& ShardReader::entry(const std::string& name, const ManifestTensor& tensor,
                                     const FilePiece& piece) const {
  const TensorInfo& info = file_.tensor(name);
  if (info.dtype == tensor.shape.dtype && info.sizes == piece.extent) return info;
  fail(ErrorKind::io,
       "[checkpoint] '{}' holds tensor '{}' as {} [{}], but its manifest says {} [{}]",
       file_.path(), name, to_string(info.dtype), fmt::join(info.sizes, ", "),
       to_string(tensor.shape.dtype), fmt::join(piece.extent, ", "));
}

int64_t ShardReader::verify() {
  if (!checked_) return 0;
  std::vector<std::byte> bytes(static_cast<size_t>(kAtOnce * kShardBlock));
  for (int64_t block = 0; block < std::ssize(sums_); block += kAtOnce)
    read_blocks(block, std::min(kAtOnce, std::ssize(sums_) - block), bytes.data());
  return covered_;
}

ManifestFile describe_shard(const std::string& directory, const std::string& name,
                            std::vector<ShardPiece>& pieces) {
  const std::filesystem::path path = std::filesystem::path(directory) / name;
  const SafetensorsReader file(path.string());
  int64_t covered = 0;
  ManifestFile result{name, size_of_file(path), crc_of_header(file),
                      crc_of_sums(read_sums(file, covered))};
  const auto found = file.metadata().find(kPieces);
  const Json places = found == file.metadata().end()
                          ? Json()
                          : Json::parse(found->second, nullptr, /*allow_exceptions=*/false);
  for (const TensorInfo& t : file.tensors()) {
    if (t.name == kChecksums) continue;
    try {
      const Json& p = places.at(t.name);
      ShardPiece piece;
      piece.name = t.name;
      piece.shape.dtype = t.dtype;
      piece.shape.dims = p.at("dims").get<std::vector<std::string>>();
      piece.shape.sizes = p.at("sizes").get<std::vector<int64_t>>();
      piece.piece = {0, p.at("offset"), t.sizes};
      pieces.push_back(std::move(piece));
    } catch (const Json::exception& e) {
      fail(ErrorKind::io, "[checkpoint] '{}' does not say where its tensor '{}' belongs: {}",
           file.path(), t.name, e.what());
    }
  }
  return result;
}

}  // namespace tessera
