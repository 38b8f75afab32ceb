// Every regular collective is one copy per peer, from a strided part of its `in` to a strided part
// of our `out`. An all-to-all has six dims, but the split block and the joined block each merge
// with their neighbours, so two strides and one contiguous width always suffice. copy_strided()
// first merges rows that are adjacent on both sides. Then it copies rows, with a compile-time width
// for narrow ones, for which a call of memcpy would cost more than the bytes.
#include "collectives/blocks.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/fail.h"

namespace tessera {

Strided wanted_part(const Collective& c, int ranks, int reader) {
  switch (c.kind) {
    case CollectiveKind::reduce_scatter:
      return {reader * c.inner, 1, 0, c.outer, ranks * c.inner, c.inner};
    case CollectiveKind::all_gather:
      return {0, 1, 0, c.outer, c.inner, c.inner};
    case CollectiveKind::all_to_all: {
      if (c.split_first) {
        const int64_t row = c.c * c.post, block = c.s * c.mid * row;
        return {reader * block, c.pre, ranks * block, c.s * c.mid, row, row};
      }
      const int64_t row = c.s * c.post, rows = c.c * c.mid;
      return {reader * row, c.pre, rows * ranks * row, rows, ranks * row, row};
    }
    default:
      return {0, 1, 0, 1, 0, c.count};
  }
}

Strided kept_part(const Collective& c, int ranks, int from) {
  switch (c.kind) {
    case CollectiveKind::all_gather:
      return {from * c.inner, 1, 0, c.outer, ranks * c.inner, c.inner};
    case CollectiveKind::all_to_all: {
      if (c.split_first) {
        const int64_t row = c.c * c.post, rows = c.s * c.mid;
        return {from * row, c.pre, rows * ranks * row, rows, ranks * row, row};
      }
      const int64_t row = c.s * c.post, block = c.c * c.mid * row;
      return {from * block, c.pre, ranks * block, c.c * c.mid, row, row};
    }
    default:
      return {0, 1, 0, 1, 0, c.count};
  }
}

int64_t counted_elements(const Collective& c, int to) {
  const int64_t rows = c.counts[to];
  TESSERA_CHECK(rows >= 0 && rows <= c.post / c.row,
                "[all_to_all] {} rows for rank {} of a block of {} ({})", rows, to, c.post / c.row,
                c.site.text);
  return rows * c.row;
}

Strided packed(const Strided& part) {
  return {0, part.n0, part.n1 * part.width, part.n1, part.width, part.width};
}

namespace {

template <int Width>
void copy_narrow(char* to, int64_t to_stride, const char* from, int64_t from_stride, int64_t rows) {
  for (int64_t i = 0; i < rows; ++i) std::memcpy(to + i * to_stride, from + i * from_stride, Width);
}

void copy_rows(char* to, int64_t to_stride, const char* from, int64_t from_stride, int64_t rows,
               int64_t width) {
  switch (width) {
    case 1:
      return copy_narrow<1>(to, to_stride, from, from_stride, rows);
    case 2:
      return copy_narrow<2>(to, to_stride, from, from_stride, rows);
    case 4:
      return copy_narrow<4>(to, to_stride, from, from_stride, rows);
    case 8:
      return copy_narrow<8>(to, to_stride, from, from_stride, rows);
    case 16:
      return copy_narrow<16>(to, to_stride, from, from_stride, rows);
    case 32:
      return copy_narrow<32>(to, to_stride, from, from_stride, rows);
    default:
      for (int64_t i = 0; i < rows; ++i) {
        std::memcpy(to + i * to_stride, from + i * from_stride, static_cast<size_t>(width));
      }
  }
}

}  // namespace

void copy_strided(void* target, Strided to, const void* source, Strided from,
                  int64_t element_bytes) {
  if (to.elements() == 0) return;
  for (int merge = 0; merge < 2; ++merge) {
    if (to.n1 == 1 || (to.stride1 == to.width && from.stride1 == from.width)) {
      for (Strided* part : {&to, &from}) {
        part->width *= part->n1;
        part->n1 = part->n0;
        part->stride1 = part->stride0;
        part->n0 = 1;
      }
    }
  }
  char* const out = static_cast<char*>(target) + to.offset * element_bytes;
  const char* const in = static_cast<const char*>(source) + from.offset * element_bytes;
  for (int64_t i = 0; i < to.n0; ++i) {
    copy_rows(out + i * to.stride0 * element_bytes, to.stride1 * element_bytes,
              in + i * from.stride0 * element_bytes, from.stride1 * element_bytes, to.n1,
              to.width * element_bytes);
  }
}

void local_reduce_strided(const void* const* inputs, int ranks, const Strided& part, void* out,
                          DType dtype, Combiner combiner, LocalReduceScratch& scratch) {
  if (part.elements() == 0) return;
  const int64_t bytes = size_of(dtype);
  const bool wide = part.width * bytes >= 512 || part.n1 == 1;
  // Packs narrow rows first, as many at a time as fit into the cache for all ranks.
  const int64_t row_bytes = part.width * bytes;
  const int64_t batch = wide ? 1 : std::max<int64_t>(1, (64 * 1024 / ranks) / row_bytes);
  scratch.rows.resize(static_cast<size_t>(ranks));
  scratch.copies.resize(wide ? 0 : static_cast<size_t>(batch * row_bytes * ranks));
  char* to = static_cast<char*>(out);
  for (int64_t i = 0; i < part.n0; ++i) {
    for (int64_t j = 0; j < part.n1; j += batch) {
      const int64_t n = std::min(batch, part.n1 - j);
      const int64_t start = (part.offset + i * part.stride0 + j * part.stride1) * bytes;
      for (int q = 0; q < ranks; ++q) {
        const char* from = static_cast<const char*>(inputs[q]) + start;
        scratch.rows[q] = from;
        if (wide) continue;
        char* copy = scratch.copies.data() + q * batch * row_bytes;
        copy_rows(copy, row_bytes, from, part.stride1 * bytes, n, row_bytes);
        scratch.rows[q] = copy;
      }
      local_reduce(scratch.rows.data(), ranks, to, n * part.width, dtype, combiner);
      to += n * part.width * bytes;
    }
  }
}

Share share_of(int64_t count, int ranks, int part) {
  constexpr int64_t kLine = 64;  // elements: at least one cache line of any dtype
  const int64_t each = (count / ranks + (count % ranks != 0) + kLine - 1) / kLine * kLine;
  return {std::min(count, each * part), std::min(count, each * (part + 1))};
}

Extent extent_of(const Collective& c, int ranks, int rank) {
  auto end = [](const std::vector<std::vector<Run>>& lists) {
    int64_t last = 0;
    for (const auto& runs : lists) {
      for (const Run& run : runs) last = std::max(last, run.offset + run.length);
    }
    return last;
  };
  switch (c.kind) {
    case CollectiveKind::all_reduce:
      return {c.count, c.count};
    case CollectiveKind::reduce_scatter:
      return {c.outer * c.inner * ranks, c.outer * c.inner};
    case CollectiveKind::all_gather:
      return {c.outer * c.inner, c.outer * c.inner * ranks};
    case CollectiveKind::all_to_all: {
      const int64_t all = c.pre * c.s * c.mid * c.c * c.post * ranks;
      return {all, all};
    }
    case CollectiveKind::exchange:
      return {end(c.send), end(c.recv)};
    case CollectiveKind::broadcast:
      return {rank == c.root ? c.count : 0, c.count};
    case CollectiveKind::barrier:
      return {};
  }
  return {};
}

int64_t total(const std::vector<Run>& runs) {
  int64_t sum = 0;
  for (const Run& run : runs) sum += run.length;
  return sum;
}

}  // namespace tessera
