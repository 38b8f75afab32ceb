// The sequence is cut into blocks at least as long as the radius, so a query finds its keys in its
// own block and the neighbour blocks. A block's keys are these blocks concatenated; shifts along
// the dim of blocks bring them. If the blocks are split over ranks, each rank sends one block.
#include <cmath>

#include "base/misspelt.h"
#include "base/sizes.h"
#include "nn/stored.h"
#include "tessera/nn_attention.h"

namespace tessera::nn {

namespace {

class Blocks {
 public:
  Blocks(Tensor x, const LocalOptions& o, Loc at)
      : o_(o), at_(at), whole_(x.dim(o.length)), size_(o.block == 0 ? o.radius : o.block) {
    TESSERA_REQUIRE(
        o.radius >= 1 && size_ >= o.radius,
        "[local_attention] radius {} and block {}: a block has at least radius positions, and "
        "one ({})",
        o.radius, size_, where(at));
    TESSERA_REQUIRE(
        o.ahead >= 0 && o.ahead <= size_ && (o.ahead == 0 || !o.causal),
        "[local_attention] ahead {} with blocks of {} and causal {}: a query that is not "
        "causal sees at most a block after itself ({})",
        o.ahead, size_, o.causal, where(at));
    if (!o.segments.empty()) require_places("the segments have", o.segments);
    count_ = (whole_.size - 1) / size_ + 1;
    checked_size(Wide{3} * count_ * size_, "the memory of all blocks");
  }

  void require_places(const char* they_have, Tensor x) const {
    const int64_t places = x.dim(o_.length).size;
    TESSERA_REQUIRE(places == whole_.size,
                    "[local_attention] {} {} places along '{}', the query has {} ({})", they_have,
                    places, o_.length, whole_.size, where(at_));
    TESSERA_REQUIRE(
        x.dim(o_.length) == whole_,
        "[local_attention] {} {} along '{}', the query has {}: bounded in one of them alone "
        "({})",
        they_have, x.shape().to_string(), o_.length, Shape{whole_}.to_string(), where(at_));
  }
  /// Replaces `length` by [blocks, inner].
  Tensor cut(Tensor x, const std::string& inner) const {
    const int64_t tail = count_ * size_ - whole_.size;
    if (tail > 0) x = pad(x, o_.length, 0, tail, 0, at_);
    std::vector<Dim> dims;
    for (const Dim& d : x.shape()) {
      if (d.name != o_.length) {
        dims.push_back(d);
        continue;
      }
      dims.emplace_back(o_.blocks, count_);
      dims.emplace_back(inner, size_);
    }
    return reshape(x, Shape(dims), at_);
  }
  /// The keys or values of each block: its neighbours' and its own, along memory_length.
  Tensor with_neighbours(Tensor x) const {
    Tensor own = cut(x, memory());
    std::vector<Tensor> parts = {shift(own, o_.blocks, 1, false, at_), own};
    if (!o_.causal) parts.push_back(shift(own, o_.blocks, -1, false, at_));
    return concat(parts, memory(), at_);
  }
  /// The mask [blocks, inner, memory_length], true where a query may look.
  Tensor mask(Graph& g, const Dim& memory_length) const {
    const Dim blocks(o_.blocks, count_), inner(o_.length, size_);
    const double size = static_cast<double>(size_), radius = static_cast<double>(o_.radius);
    const double most = o_.causal ? 0 : o_.ahead == 0 ? radius - 1 : static_cast<double>(o_.ahead);
    Tensor ahead = iota(g, memory_length) - iota(g, inner) - size;
    Tensor near = logical_and(ahead > -radius, ahead <= most, at_);
    Tensor position = iota(g, blocks) * size + iota(g, memory_length) - size;
    Tensor places = whole_.is_bounded  // those of the run
                        ? dim_size(g, whole_, DType::int32, at_)
                        : constant(g, static_cast<double>(whole_.size), DType::int32, {}, at_);
    Tensor inside = logical_and(position >= 0.0, position < places, at_);
    Tensor seen = logical_and(near, inside, at_);
    if (o_.segments.empty()) return seen;
    Tensor own = cut(o_.segments, o_.length), theirs = with_neighbours(o_.segments);
    return logical_and(seen, segment_mask(own, theirs, at_), at_);
  }
  /// The inverse of cut().
  Tensor join(Tensor x, const Shape& shape) const {
    std::vector<Dim> dims;
    for (const Dim& d : shape)
      dims.push_back(d.name == o_.length ? Dim(o_.length, count_ * size_) : d);
    Tensor y = reshape(x, Shape(dims), at_);
    if (count_ * size_ != whole_.size) y = slice(y, o_.length, 0, whole_.size, at_);
    return whole_.is_bounded ? reshape(y, shape, at_) : y;
  }
  std::string memory() const { return "memory_" + o_.length; }

 private:
  const LocalOptions& o_;
  Loc at_;
  Dim whole_;
  int64_t size_, count_ = 1;
};

}  // namespace

Tensor local_attention(Tensor query, Tensor key, Tensor value, const LocalOptions& o, Loc at) {
  const bool is_users = is_users_call(at);
  return on_behalf_of("local_attention", at, [&] {
    for (const Tensor& other : {key, value}) {
      if (is_users) require_no_misspelling(query.shape(), other.shape());
    }
    const Blocks blocks(query, o, at);
    blocks.require_places("the key has", key);
    blocks.require_places("the value has", value);
    BiasedOptions options;
    options.length = o.length;
    options.memory_length = blocks.memory();
    options.key_dim = o.key_dim;
    options.scale = o.scale;
    options.bias = o.bias;
    Tensor keys = blocks.with_neighbours(key), values = blocks.with_neighbours(value);
    Tensor mask = blocks.mask(query.graph(), keys.dim(blocks.memory()));
    Tensor seen = biased_attention(blocks.cut(query, o.length), keys, values, mask, options, at);
    return blocks.join(seen, query.shape());
  });
}

}  // namespace tessera::nn
