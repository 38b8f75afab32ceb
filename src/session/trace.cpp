#include "tessera/trace.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "base/files.h"
#include "collectives/communicator.h"
#include "session/recorder.h"
#include "tessera/cluster.h"

namespace tessera {

struct Trace::State {
  mutable std::mutex mutex;
  std::vector<Event> events;
  size_t most = 0, left_out = 0;
};

Trace::Trace(size_t most_events) : state_(std::make_unique<State>()) { state_->most = most_events; }
Trace::~Trace() = default;

void Trace::add(Event event) {
  const std::lock_guard lock(state_->mutex);
  if (state_->events.size() < state_->most) {
    state_->events.push_back(std::move(event));
  } else {
    ++state_->left_out;
  }
}

std::vector<Trace::Event> Trace::events() const {
  const std::lock_guard lock(state_->mutex);
  return state_->events;
}

namespace {

/// Every process's text, in order of rank. Collective.
std::vector<std::string> gather_texts(Communicator& world, const std::string& mine) {
  auto gather = [&](DType dtype, const void* in, void* out, int64_t count) {
    Collective c;
    c.kind = CollectiveKind::all_gather;
    c.dtype = dtype;
    c.in = in;
    c.out = out;
    c.inner = count;
    c.site.text = "writing a trace";
    world.run(c);
  };
  const auto length = static_cast<int64_t>(mine.size());
  std::vector<int64_t> lengths(static_cast<size_t>(world.size()));
  gather(DType::int64, &length, lengths.data(), 1);
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::string padded = mine, all(static_cast<size_t>(longest * world.size()), ' ');
  padded.resize(static_cast<size_t>(longest), ' ');
  if (longest > 0) gather(DType::uint8, padded.data(), all.data(), longest);
  std::vector<std::string> texts;
  for (size_t r = 0; r < lengths.size(); ++r) {
    texts.push_back(all.substr(r * static_cast<size_t>(longest), static_cast<size_t>(lengths[r])));
  }
  return texts;
}

}  // namespace

void Trace::write(Cluster& cluster, const std::string& path) const {
  using nlohmann::json;
  json rows = json::array();
  for (const Event& e : events())
    rows.push_back({e.rank, e.is_transfer ? 1 : 0, e.name, e.source, e.begin, e.seconds});
  std::vector<std::string> texts = {rows.dump()};
  if (cluster.local_ranks() != cluster.size())
    cluster.run([&](int, Communicator& world) { texts = gather_texts(world, rows.dump()); });
  if (!cluster.is_root()) return;
  json all = json::array();
  for (const std::string& text : texts) {
    for (json& row : json::parse(text)) all.push_back(std::move(row));
  }
  double first = std::numeric_limits<double>::infinity();
  for (const json& row : all) first = std::min(first, row[4].get<double>());
  json events = json::array();
  for (int r = 0; r < cluster.size(); ++r) {
    for (int lane = 0; lane < 2; ++lane) {
      events.push_back({{"ph", "M"},
                        {"name", "thread_name"},
                        {"pid", r},
                        {"tid", lane},
                        {"args", {{"name", lane == 0 ? "compute" : "transfers"}}}});
    }
    events.push_back({{"ph", "M"},
                      {"name", "process_name"},
                      {"pid", r},
                      {"args", {{"name", fmt::format("rank {}", r)}}}});
  }
  for (const json& row : all) {
    events.push_back({{"ph", "X"},
                      {"pid", row[0]},
                      {"tid", row[1]},
                      {"name", row[2]},
                      {"args", {{"source", row[3]}}},
                      {"ts", 1e6 * (row[4].get<double>() - first)},
                      {"dur", 1e6 * row[5].get<double>()}});
  }
  write_text_file(
      path, json{{"traceEvents", events}, {"otherData", {{"left_out", state_->left_out}}}}.dump(1) +
                "\n");
}

std::function<void(const StepSpan&)> recorder_of(Trace* trace, int rank) {
  if (trace == nullptr) return {};
  return [trace, rank](const StepSpan& span) {
    const Origin& origin = span.step->origin;
    const bool waits = span.step->kind == StepKind::collective && !span.is_transfer;
    trace->add({rank, span.is_transfer, (waits ? "wait for " : "") + origin.name, origin.source,
                span.begin, span.seconds});
  };
}

}  // namespace tessera
