#include "tessera/inspect.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "io/agree.h"
#include "tessera/safetensors.h"

namespace tessera {

Summary summarize(const Array& array) {
  Summary s{INFINITY, -INFINITY, 0, 0, 0};
  double squares = 0;
  const int64_t n = array.elements();
  for (int64_t i = 0; i < n; ++i) {
    const double x = array.at(i);
    if (!std::isfinite(x)) {
      ++s.non_finite;
      continue;
    }
    s.min = std::min(s.min, x);
    s.max = std::max(s.max, x);
    s.mean += x;
    squares += x * x;
  }
  if (s.non_finite == n) return {NAN, NAN, NAN, NAN, n};
  s.mean /= static_cast<double>(n - s.non_finite);
  s.l2 = std::sqrt(squares);
  return s;
}

std::string describe(const Array& array) {
  std::string shape;
  for (size_t d = 0; d < array.sizes.size(); ++d)
    shape += fmt::format("{}{}={}", d ? ", " : "", array.dims[d], array.sizes[d]);
  const Summary s = summarize(array);
  return fmt::format("{} [{}]  min {:.6g}  max {:.6g}  mean {:.6g}  L2 {:.6g}  non-finite {}",
                     to_string(array.dtype), shape, s.min, s.max, s.mean, s.l2, s.non_finite);
}

std::string parameter_table(const Graph& graph) {
  std::vector<std::array<std::string, 5>> rows = {
      {"parameter", "dims", "elements", "trained", "weight decay"}};
  int64_t elements = 0, trained = 0, decayed = 0;
  for (const Stored& s : graph.stored()) {
    if (!s.trainable) continue;
    const Value& value = graph.value(s.value);
    const int64_t count = value.shape.elements();
    const bool is_trained =
        std::any_of(graph.updates().begin(), graph.updates().end(),
                    [&](const Update& update) { return update.stored == s.value; });
    rows.push_back({value.name, value.shape.to_string(), std::to_string(count),
                    is_trained ? "yes" : "no", fmt::format("{:g}", s.weight_decay)});
    elements += count;
    if (is_trained) trained += count;
    if (s.weight_decay != 0) decayed += count;
  }
  std::array<size_t, 5> widths = {};
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows)
    text += fmt::format("{:<{}}  {:<{}}  {:>{}}  {:<7}  {}\n", row[0], widths[0], row[1], widths[1],
                        row[2], widths[2], row[3], row[4]);
  return text +
         fmt::format("{} elements, {} trained, {} with weight decay\n", elements, trained, decayed);
}

std::string index_text(const std::vector<std::string>& dims, const std::vector<int64_t>& sizes,
                       int64_t i) {
  std::string text;
  for (size_t d = sizes.size(); d-- > 0; i /= sizes[d]) {
    text = fmt::format("{} {}{}", dims[d], i % sizes[d], text.empty() ? "" : ", ") + text;
  }
  return "[" + text + "]";
}

Difference difference(const Array& a, const Array& b, double tolerance) {
  TESSERA_CHECK(a.sizes == b.sizes, "difference of arrays of {} and {} elements", a.elements(),
                b.elements());
  const int64_t n = b.elements();
  auto apart = [&](int64_t i) {
    const double x = a.at(i), y = b.at(i);
    if (x == y || (std::isnan(x) && std::isnan(y))) return 0.0;
    return std::isfinite(x) && std::isfinite(y) ? std::abs(x - y) : INFINITY;
  };
  double squares = 0, size = 0;
  for (int64_t i = 0; i < n; ++i) {
    squares += apart(i) * apart(i);
    if (std::isfinite(b.at(i))) size += b.at(i) * b.at(i);
  }
  Difference d;
  if (squares == 0) return d;
  d.relative = size > 0 ? std::sqrt(squares / size) : INFINITY;
  const double limit = tolerance * std::sqrt(size / static_cast<double>(n));
  for (int64_t i = 0; i < n && d.first < 0; ++i) {
    if (apart(i) > limit) d.first = i;
  }
  return d;
}

namespace {

/// The header of a dump. Root only.
std::unique_ptr<SafetensorsWriter> start(const Graph& graph, const std::vector<std::string>& names,
                                         const std::vector<Array>& shapes, const std::string& path,
                                         std::map<std::string, std::string> metadata) {
  std::map<std::string, std::string> source;
  for (size_t v = 0; v < graph.values().size(); ++v) {
    const int id = static_cast<int>(v);
    source[graph.value(id).name] = graph.producer(id).at.to_string();
  }
  nlohmann::json dims = nlohmann::json::object(), sources = nlohmann::json::object();
  std::vector<TensorInfo> infos;
  for (size_t i = 0; i < names.size(); ++i) {
    TensorInfo info;
    info.name = names[i];
    info.dtype = shapes[i].dtype;
    info.sizes = shapes[i].sizes;
    infos.push_back(std::move(info));
    dims[names[i]] = shapes[i].dims;
    sources[names[i]] = source[names[i]];
  }
  metadata["dims"] = dims.dump();
  metadata["source"] = sources.dump();
  return std::make_unique<SafetensorsWriter>(path, infos, metadata);
}

}  // namespace

// If the root fails to write, it goes on fetching, so that the other processes do not wait for it.
void dump(Session& session, const Graph& graph, const std::vector<std::string>& names,
          const std::string& path, const std::map<std::string, std::string>& metadata) {
  Cluster& cluster = session.cluster();
  std::vector<Array> shapes;
  for (const std::string& name : names) {
    shapes.push_back(session.fetch(name));
    shapes.back().bytes = {};
  }
  std::unique_ptr<SafetensorsWriter> writer;
  run_together(cluster, [&] {
    if (cluster.is_root()) writer = start(graph, names, shapes, path, metadata);
  });
  std::exception_ptr failure;
  for (const std::string& name : names) {
    const Array whole = session.fetch(name);
    if (!writer || failure) continue;
    try {
      writer->write(name, whole.bytes.data(), static_cast<int64_t>(whole.bytes.size()));
    } catch (...) {
      failure = std::current_exception();
    }
  }
  run_together(cluster, [&] {
    if (failure) std::rethrow_exception(failure);
    if (writer) writer->finish();
  });
}

}  // namespace tessera
