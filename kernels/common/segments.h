// The segments of packed documents: which positions of another row have the id of a position. Ids
// ascend along a row, but for zeros at its end, which are padding.
#pragma once

#include "program/attention_mask.h"

namespace tessera::kernels {

/// The first of ids[0], ..., ids[end - 1] that is not below `id`.
template <class Ids>
TESSERA_HD int64_t first_from(const Ids& ids, int64_t end, int64_t id) {
  int64_t begin = 0;
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (ids[middle] < id) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

/// The positions with this id of a row whose ids, without zeros at its end, end at `end`.
template <class Ids>
TESSERA_HD PositionRange positions_of(const Ids& ids, int64_t end, int64_t id) {
  if (id == 0) return {};
  return {first_from(ids, end, id), first_from(ids, end, id + 1)};
}

}  // namespace tessera::kernels
