// Cells and blocks are carved from slabs and never unmapped or reset. A cell is used again once the
// gate of its last meeting shows that all ranks have left.
#include <algorithm>
#include <bit>
#include <new>

#include "collectives/peer_memory.h"

namespace tessera {

void* CellPool::carve(int64_t bytes) {
  constexpr int64_t kSlab = 256 * 1024;
  bytes = (bytes + 63) / 64 * 64;
  if (bytes > kSlab / 2) return fabric_.map(bytes);
  if (bytes > slab_left_) {
    slab_ = static_cast<char*>(fabric_.map(kSlab));
    slab_left_ = kSlab;
  }
  char* const block = slab_;
  slab_ += bytes;
  slab_left_ -= bytes;
  return block;
}

Cell* CellPool::take_cell() {
  sweep();
  if (cells_.empty()) return new (carve(sizeof(Cell))) Cell;
  Cell* const cell = cells_.back();
  cells_.pop_back();
  return cell;
}

namespace {
int size_class(int64_t bytes) {
  return std::bit_width(static_cast<uint64_t>(std::max<int64_t>(bytes, 256) - 1));
}
}  // namespace

void* CellPool::take(int64_t bytes) {
  sweep();
  std::vector<void*>& free = blocks_[size_class(bytes)];
  if (free.empty()) return carve(int64_t{1} << size_class(bytes));
  void* const block = free.back();
  free.pop_back();
  return block;
}

void CellPool::retire(Cell* cell, std::vector<Block> blocks, std::vector<Goal> goals) {
  retired_.push_back({cell, std::move(blocks), std::move(goals)});
}

void CellPool::sweep() {
  std::erase_if(retired_, [&](Retired& old) {
    const bool left = std::all_of(old.goals.begin(), old.goals.end(), [](const Goal& goal) {
      return static_cast<int32_t>(goal.first->count.load(std::memory_order_acquire) -
                                  goal.second) >= 0;
    });
    if (!left) return false;
    cells_.push_back(old.cell);
    for (const auto& [memory, bytes] : old.blocks) blocks_[size_class(bytes)].push_back(memory);
    return true;
  });
}

}  // namespace tessera
