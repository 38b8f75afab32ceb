// Instructions that compute one result a lane from numbers of the same lane.
#pragma once

#include <tuple>
#include <utility>

#include "gpu/ptx/forms.h"
#include "gpu/ptx/warp.h"

namespace tessera::test::ptx {

template <class F, class D, class... S, size_t... k>
void map_lanes(Warp& w, const Instruction& i, std::index_sequence<k...>) {
  const Lanes<D> to = w.lanes<D>(i.r[0]);
  const std::tuple<Lanes<S>...> from{w.lanes<S>(i.r[k + 1])...};
  w.each([&](unsigned lane) { to.set(lane, F::apply(std::get<k>(from)[lane]...)); });
}
/// F::apply(S...) -> D, of registers that have just these widths.
template <class F, class D, class... S>
void map(Warp& w, const Instruction& i) {
  map_lanes<F, D, S...>(w, i, std::index_sequence_for<S...>{});
}
template <class F, class D, class... S>
Form form() {
  return {map<F, D, S...>, {static_cast<int>(sizeof(D)), static_cast<int>(sizeof(S))...}};
}

template <class T>
struct Tag {
  using type = T;
};

/// f(Tag<T>) for the type of that name, of the integers that are asked for.
template <class F>
std::optional<Form> of_integer(const std::string& type, F f) {
  if (type == "u16" || type == "b16") return f(Tag<uint16_t>{});
  if (type == "s16") return f(Tag<int16_t>{});
  if (type == "u32" || type == "b32") return f(Tag<uint32_t>{});
  if (type == "s32") return f(Tag<int32_t>{});
  if (type == "u64" || type == "b64") return f(Tag<uint64_t>{});
  if (type == "s64") return f(Tag<int64_t>{});
  return std::nullopt;
}
template <class F>
std::optional<Form> of_floating(const std::string& type, F f) {
  if (type == "f32") return f(Tag<float>{});
  if (type == "f64") return f(Tag<double>{});
  return std::nullopt;
}

}  // namespace tessera::test::ptx
