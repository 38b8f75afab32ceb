#include "ops/op_cases_run.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/fail.h"
#include "tessera/nn.h"

namespace tessera::test {

namespace {
uint64_t hash_of(const std::string& text) {
  uint64_t h = 14695981039346656037ull;
  for (unsigned char ch : text) h = (h ^ ch) * 1099511628211ull;
  return h;
}
}  // namespace

BuiltCase::BuiltCase(const OpCase& row, DType type) : row_(row), type_(type) {
  rounds[0].sizes = rounds[1].sizes = row.sizes;
  for (auto& [dim, size] : rounds[1].sizes) size = std::max<int64_t>(size - 1, 1);
  for (const CaseInput& in : row.in) {
    const DType dtype = in.dtype == DType::float32 ? type : in.dtype;
    Tensor t = in.stored ? graph_.parameter(in.name, in.shape, nn::zeros(), dtype)
                         : graph_.input(in.name, in.shape, dtype);
    in_.push_back(t);
    take(in, t);
  }
  out_ = row.build(graph_, in_);
  for (const Tensor& p : graph_.parameters()) {
    if (fed_.count(p.name()) == 0) take(parameter(real(p.name(), p.shape())), p);
  }
  if (!wrt_.empty()) add_loss();
}

void BuiltCase::take(const CaseInput& in, Tensor tensor) {
  cases_.push_back(in);
  fed_.emplace(in.name, tensor);
  draw(in);
  if (in.differentiable && is_floating(tensor.dtype())) {
    wrt_.push_back(tensor);
    differentiable_.push_back(cases_.size() - 1);
  }
}

void BuiltCase::draw(const CaseInput& in) {
  std::mt19937_64 random(hash_of(row_.name + in.name));
  for (Round& round : rounds) {
    std::vector<int64_t> sizes;
    for (const Dim& d : in.shape) {
      const auto run = round.sizes.find(d.name);
      sizes.push_back(d.is_bounded && run != round.sizes.end() ? run->second : d.size);
    }
    Whole whole(in.shape.names(), sizes);
    for (double& x : whole.data) {
      const double u = static_cast<double>(random() >> 11) * 0x1p-53;
      x = in.whole_numbers ? std::floor(in.lo + u * (in.hi - in.lo + 1))
                           : as_dtype(in.lo + u * (in.hi - in.lo), type_);
    }
    round.feeds[in.name] = std::move(whole);
  }
}

void BuiltCase::add_loss() {
  for (size_t i = 0; i < out_.size(); ++i) {
    if (!is_floating(out_[i].dtype())) continue;
    const std::string name = fmt::format("weight{}", i);
    Tensor weight = graph_.input(name, out_[i].shape(), type_);
    fed_.emplace(name, weight);
    draw(real(name, out_[i].shape(), 0.5, 1.5));
    Tensor wide = out_[i].dtype() == type_ ? out_[i] : cast(out_[i], type_);
    Tensor part = sum_all(wide * weight);
    loss_ = loss_.empty() ? part : loss_ + part;
  }
  if (!loss_.empty()) grads_ = tessera::gradients(loss_, wrt_);
}

std::vector<Tensor> BuiltCase::fetched() const {
  std::vector<Tensor> all = out_;
  if (!loss_.empty()) all.push_back(loss_);
  all.insert(all.end(), grads_.begin(), grads_.end());
  return all;
}

std::vector<Whole> BuiltCase::operands(const Round& round) const {
  std::vector<Whole> all;
  for (const CaseInput& in : cases_) all.push_back(round.feeds.at(in.name));
  return all;
}

std::unique_ptr<Session> BuiltCase::compile(Cluster& cluster, const Mesh& mesh,
                                            const std::string& layout, const std::string& device,
                                            int64_t strict_chunks, int threads) const {
  CompileOptions options;
  options.mesh = mesh;
  options.layout = Layout::parse(layout);
  options.functions = {{"all", fetched(), false}};
  if (!loss_.empty()) options.functions.push_back({"loss", {loss_}, false});
  options.seed = 7;
  options.device = device;
  options.strict_chunks = strict_chunks;
  options.threads_per_rank = threads;
  return std::make_unique<Session>(graph_, cluster, options);
}

void BuiltCase::feed(Session& session, const Round& round) const {
  for (const auto& [dim, size] : round.sizes) session.set_size(dim, size);
  for (const auto& [name, tensor] : fed_) {
    const Array value = array_of(round.feeds.at(name), tensor.dtype());
    if (graph_.find_stored(tensor.id())) {
      session.assign(name, value);
    } else {
      try {
        session.feed(name, value);
      } catch (const Error& e) {  // no function needs it
        if (std::string(e.what()).find("has no input") == std::string::npos) throw;
      }
    }
  }
}

std::array<std::vector<Whole>, 2> BuiltCase::run(Cluster& cluster, const Mesh& mesh,
                                                 const std::string& layout) const {
  auto session = compile(cluster, mesh, layout);
  std::array<std::vector<Whole>, 2> values;
  for (size_t r = 0; r < rounds.size(); ++r) {
    feed(*session, rounds[r]);
    session->run("all");
    for (const Tensor& t : fetched()) values[r].push_back(whole_of(session->fetch(t.name())));
  }
  return values;
}

Reference BuiltCase::reference(const Round& round) const {
  Reference reference(graph_, round.sizes);
  for (const auto& [op, meaning] : row_.meanings) reference.define(op, meaning);
  for (const auto& [name, tensor] : fed_) reference.set(tensor, round.feeds.at(name));
  return reference;
}

Cluster& Clusters::of(int ranks) {
  auto& slot = clusters_[ranks];
  if (!slot) {
    slot = std::make_unique<Cluster>(Cluster::threads(ranks));
    slot->set_timeout(20);
  }
  return *slot;
}

namespace {

std::string to_text(const std::vector<std::string>& dims,
                    const std::vector<std::vector<std::string>>& axes) {
  std::string text;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (!axes[d].empty())
      text += fmt::format("{}{}:{}", text.empty() ? "" : ";", dims[d], fmt::join(axes[d], "+"));
  }
  return text;
}

}  // namespace

std::vector<MeshLayout> layouts_of(const std::vector<std::string>& dims, const std::string& mesh,
                                   std::mt19937_64& random) {
  const std::vector<std::string> names = Mesh::parse(mesh).names();
  const size_t rank = names.size();
  std::vector<MeshLayout> result;
  // Axes have one size: an assignment is how many of them each dim has. Which ones, and in what
  // order, is drawn.
  std::vector<size_t> count(dims.size(), 0);
  while (true) {
    size_t used = 0;
    for (size_t n : count) used += n;
    if (used <= rank) {
      std::vector<std::string> left = names;
      std::shuffle(left.begin(), left.end(), random);
      std::vector<std::vector<std::string>> axes(dims.size());
      for (size_t d = 0; d < dims.size(); ++d) {
        for (size_t k = 0; k < count[d]; ++k) axes[d].push_back(left.back()), left.pop_back();
      }
      result.push_back({mesh, to_text(dims, axes)});
    }
    size_t d = dims.size();
    while (d > 0 && ++count[d - 1] > rank) count[--d] = 0;
    if (d == 0) break;
  }
  for (int k = 0; k < 3 && dims.size() > 1; ++k) {
    std::vector<std::vector<std::string>> axes(dims.size());
    const size_t first = random() % dims.size(),
                 second = (first + 1 + random() % (dims.size() - 1)) % dims.size();
    for (const std::string& axis : names) axes[random() % dims.size()].push_back(axis);
    const std::string shared = names[random() % rank];
    for (size_t d : {first, second}) {
      if (std::find(axes[d].begin(), axes[d].end(), shared) == axes[d].end())
        axes[d].push_back(shared);
    }
    result.push_back({mesh, to_text(dims, axes)});
  }
  return result;
}

std::vector<std::string> dims_in(const Graph& graph, const std::vector<std::string>& names) {
  std::vector<std::string> found;
  for (const std::string& name : names) {
    const auto& values = graph.values();
    if (std::any_of(values.begin(), values.end(),
                    [&](const Value& v) { return v.shape.has(name); }))
      found.push_back(name);
  }
  return found;
}

uint64_t seed_of_run(uint64_t fallback) {
  const char* text = std::getenv("TESSERA_SEED");
  return text ? std::strtoull(text, nullptr, 10) : fallback;
}

}  // namespace tessera::test
