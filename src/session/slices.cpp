#include "session/slices.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/fail.h"
#include "base/float16.h"

namespace tessera {

Array Array::room_for(const Shape& shape, DType dtype, int64_t values) {
  TESSERA_REQUIRE(values == shape.elements(), "[Array] {} values for {}, which has {} elements",
                  values, shape.to_string(), shape.elements());
  Array array(dtype, shape.names(), {});
  for (const Dim& d : shape) array.sizes.push_back(d.size);
  array.bytes.resize(static_cast<size_t>(values * size_of(dtype)));
  return array;
}

double Array::at(int64_t i) const { return number_at(bytes.data(), dtype, i); }

double number_at(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::float32:
      return static_cast<const float*>(data)[i];
    case DType::float64:
      return static_cast<const double*>(data)[i];
    case DType::bfloat16:
      return to_float(static_cast<const BFloat16*>(data)[i]);
    case DType::float16:
      return to_float(static_cast<const Float16*>(data)[i]);
    case DType::int32:
      return static_cast<const int32_t*>(data)[i];
    case DType::int64:
      return static_cast<double>(static_cast<const int64_t*>(data)[i]);
    case DType::uint8:
    case DType::bool_:
      return static_cast<const uint8_t*>(data)[i];
  }
  return 0;
}

namespace {

constexpr size_t kMostDims = Shape::kMostDims;

int64_t actual_size(const Port& port, size_t d, const std::vector<int64_t>& scalars) {
  return port.scalars[d] < 0 ? port.sizes[d] : scalars[port.scalars[d]];
}

Slice slice_at(const Program& program, const Port& port, std::span<const int> coordinates,
               const std::vector<int64_t>& scalars) {
  Slice slice;
  slice.dtype = port.view.dtype;
  slice.dims = port.dims;
  slice.strides = port.view.strides;
  slice.is_owner = true;
  std::vector<bool> used(coordinates.size(), false);
  for (size_t d = 0; d < port.sizes.size(); ++d) {
    int64_t index = 0;
    for (int axis : port.axes[d]) {
      index = index * program.axis_sizes[axis] + coordinates[axis];
      used[axis] = true;
    }
    const int64_t local = port.view.sizes[d];
    slice.offset.push_back(index * local);
    slice.valid.push_back(
        std::clamp<int64_t>(actual_size(port, d, scalars) - index * local, 0, local));
  }
  for (size_t a = 0; a < coordinates.size(); ++a)
    slice.is_owner = slice.is_owner && (used[a] || coordinates[a] == 0);
  for (size_t a = 0; a < coordinates.size(); ++a)
    slice.rank = slice.rank * program.axis_sizes[a] + coordinates[a];
  return slice;
}

using Strides = std::array<int64_t, kMostDims>;

Strides row_major(const std::vector<int64_t>& sizes) {
  TESSERA_CHECK(sizes.size() <= kMostDims, "a tensor of {} dims; at most {} are supported",
                sizes.size(), kMostDims);
  Strides strides{};
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0; stride *= sizes[d]) strides[d] = stride;
  return strides;
}

/// Calls copy(slice bytes, whole bytes, elements) for each run along the last dim, with the strides
/// of the whole.
template <class Copy>
void each_run(const Slice& slice, const Strides& strides, Copy copy) {
  const int64_t item = size_of(slice.dtype);
  const size_t rank = slice.valid.size();
  for (int64_t v : slice.valid) {
    if (v == 0) return;
  }
  std::array<int64_t, kMostDims> index{};
  while (true) {
    int64_t local = 0, global = 0;
    for (size_t d = 0; d < rank; ++d) {
      local += index[d] * slice.strides[d];
      global += (slice.offset[d] + index[d]) * strides[d];
    }
    const int64_t run = rank == 0 ? 1 : slice.valid[rank - 1];
    copy(static_cast<std::byte*>(slice.data) + local * item, global * item, run);
    size_t d = rank == 0 ? 0 : rank - 1;
    while (d > 0 && ++index[d - 1] == slice.valid[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

Strides strides_of(const ArrayView& whole) {
  Strides strides = row_major(whole.sizes);
  std::copy(whole.strides.begin(), whole.strides.end(), strides.begin());
  return strides;
}

/// Addresses between which elements with strides lie: the first byte, and that behind the last.
struct Extent {
  Extent(const void* data, DType dtype, const std::vector<int64_t>& sizes, const int64_t* strides)
      : begin(reinterpret_cast<intptr_t>(data)), end(begin) {
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] == 0) return;
      const int64_t last = (sizes[d] - 1) * strides[d] * size_of(dtype);
      (last < 0 ? begin : end) += last;
    }
    end += size_of(dtype);
  }
  bool overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }

  intptr_t begin, end;
};

}  // namespace

Slice slice_of(const Program& program, const Port& port, const Executor& executor,
               const std::vector<int64_t>& scalars) {
  Slice slice = slice_at(program, port, executor.coordinates(), scalars);
  slice.data = executor.data(port);
  return slice;
}

Array shape_for(const Port& port, const std::vector<int64_t>& scalars) {
  Array shape;
  shape.dtype = port.view.dtype;
  shape.dims = port.dims;
  for (size_t d = 0; d < port.sizes.size(); ++d)
    shape.sizes.push_back(actual_size(port, d, scalars));
  return shape;
}

Array array_for(const Port& port, const std::vector<int64_t>& scalars) {
  Array shape = shape_for(port, scalars);
  return Array(shape.dtype, std::move(shape.dims), std::move(shape.sizes));
}

void require_matches(const Port& port, const std::vector<int64_t>& scalars, DType dtype,
                     const std::vector<int64_t>& sizes) {
  TESSERA_REQUIRE(dtype == port.view.dtype, "'{}' is {} but the array is {}", port.name,
                  to_string(port.view.dtype), to_string(dtype));
  bool fits = sizes.size() == port.sizes.size();
  for (size_t d = 0; fits && d < sizes.size(); ++d)
    fits = sizes[d] == actual_size(port, d, scalars);
  if (fits) return;
  const Array expected = array_for(port, scalars);
  fail(ErrorKind::usage, "'{}' has the sizes [{}] (dims {}) but the array has [{}]", port.name,
       fmt::join(expected.sizes, ", "), fmt::join(expected.dims, ", "), fmt::join(sizes, ", "));
}

void require_matches(const Port& port, const std::vector<int64_t>& scalars, const Array& whole) {
  if (lies_as(port.dims, whole)) {
    require_matches(port, scalars, whole.dtype, whole.sizes);
  } else {
    require_matches(port, scalars, whole.dtype, by_name(port.name, port.dims, whole).sizes);
  }
  const auto bytes = static_cast<size_t>(whole.elements() * size_of(whole.dtype));
  TESSERA_REQUIRE(whole.bytes.size() == bytes, "'{}' needs {} bytes but the array holds {} bytes",
                  port.name, bytes, whole.bytes.size());
}

void require_matches(const Port& port, const std::vector<int64_t>& scalars,
                     const ArrayView& whole) {
  require_matches(port, scalars, whole.dtype, whole.sizes);
  TESSERA_REQUIRE(
      whole.strides.empty() || whole.strides.size() == whole.sizes.size(),
      "'{}' has {} dims but the view has {} strides; give one for each dim, or none for "
      "row-major",
      port.name, whole.sizes.size(), whole.strides.size());
  TESSERA_REQUIRE(whole.data != nullptr, "the view for '{}' has no data", port.name);
}

ArrayView by_name(const std::string& name, const std::vector<std::string>& dims,
                  const Array& whole) {
  ArrayView view{whole.bytes.data(), whole.dtype, {}, {}};
  const Strides strides = row_major(whole.sizes);
  for (const std::string& dim : dims) {
    const auto at = std::find(whole.dims.begin(), whole.dims.end(), dim);
    TESSERA_REQUIRE(
        at != whole.dims.end() && dims.size() == whole.dims.size(),
        "'{}' has the dims [{}] but the array has [{}]; name them alike, or give the array no "
        "names",
        name, fmt::join(dims, ", "), fmt::join(whole.dims, ", "));
    const auto d = static_cast<size_t>(at - whole.dims.begin());
    view.sizes.push_back(whole.sizes.at(d));
    view.strides.push_back(strides[d]);
  }
  return view;
}

ArrayView apart_from(const std::vector<Slice>& slices, const ArrayView& whole, Array& copy) {
  const Extent mine(whole.data, whole.dtype, whole.sizes, strides_of(whole).data());
  const auto shares = [&](const Slice& slice) {
    return mine.overlaps(Extent(slice.data, slice.dtype, slice.valid, slice.strides.data()));
  };
  if (std::none_of(slices.begin(), slices.end(), shares)) return whole;
  copy = Array(whole.dtype, {}, whole.sizes);
  const Strides dense = row_major(whole.sizes);
  Slice all;
  all.data = copy.bytes.data();
  all.dtype = whole.dtype;
  all.offset.assign(whole.sizes.size(), 0);
  all.valid = whole.sizes;
  all.strides.assign(dense.begin(), dense.begin() + static_cast<int64_t>(whole.sizes.size()));
  copy_in(whole, all);
  return {copy.bytes.data(), whole.dtype, whole.sizes, {}};
}

void copy_in(const Array& whole, const Slice& slice) {
  const int64_t item = size_of(slice.dtype);
  each_run(slice, row_major(whole.sizes), [&](std::byte* local, int64_t global, int64_t n) {
    std::memcpy(local, whole.bytes.data() + global, static_cast<size_t>(n * item));
  });
}

void copy_in(const ArrayView& whole, const Slice& slice) {
  const auto item = static_cast<size_t>(size_of(slice.dtype));
  const Strides strides = strides_of(whole);
  const int64_t last = whole.sizes.empty() ? 1 : strides[whole.sizes.size() - 1];
  each_run(slice, strides, [&](std::byte* local, int64_t global, int64_t n) {
    const std::byte* from = static_cast<const std::byte*>(whole.data) + global;
    if (last == 1) {
      std::memcpy(local, from, static_cast<size_t>(n) * item);
      return;
    }
    const auto step = last * static_cast<int64_t>(item);
    for (int64_t i = 0; i < n; ++i) std::memcpy(local + i * int64_t(item), from + i * step, item);
  });
}

void copy_out(const Slice& slice, Array& whole) {
  const int64_t item = size_of(slice.dtype);
  each_run(slice, row_major(whole.sizes), [&](std::byte* local, int64_t global, int64_t n) {
    std::memcpy(whole.bytes.data() + global, local, static_cast<size_t>(n * item));
  });
}

void gather_whole(const Program& program, const Port& port, Executor& executor, const void* mine,
                  const std::vector<int64_t>& scalars, Array& whole) {
  const int64_t bytes = port.view.elements() * size_of(port.view.dtype);
  std::vector<std::byte> all(static_cast<size_t>(bytes) * executor.world().size());
  Collective c;
  c.kind = CollectiveKind::all_gather;
  c.dtype = DType::uint8;
  c.in = mine;
  c.out = all.data();
  c.inner = bytes;
  c.site.text = "fetch of " + port.name;
  executor.world().run(c);
  for (int r = 0; r < executor.world().size(); ++r) {
    std::vector<int> coordinates(program.axis_sizes.size());
    for (int a = static_cast<int>(coordinates.size()) - 1, rest = r; a >= 0;
         rest /= program.axis_sizes[a--]) {
      coordinates[a] = rest % program.axis_sizes[a];
    }
    Slice slice = slice_at(program, port, coordinates, scalars);
    slice.data = all.data() + bytes * r;
    if (slice.is_owner) copy_out(slice, whole);
  }
}

}  // namespace tessera
