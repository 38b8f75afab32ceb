#include "cli/step_timing.h"

#include <algorithm>

#include "base/fail.h"
#include "base/median.h"
#include "tessera/simulate.h"

namespace tessera::cli {

namespace {

constexpr int kRounds = 9, kWarmup = 2;
constexpr double kCounts = 0.01;  ///< kernels with a smaller share of the step are left unchanged

void feed(Session& session, const nn::Model& model, int64_t vocab) {
  for (const Tensor& input : model.inputs) {
    std::vector<int64_t> sizes;
    for (const Dim& d : input.shape()) sizes.push_back(d.size);
    Array tokens(DType::int32, input.shape().names(), sizes);
    for (int64_t i = 0; i < tokens.elements(); ++i)
      tokens.data<int32_t>()[i] = static_cast<int32_t>(i * 7 % vocab);
    session.feed(input.name(), tokens);
  }
}

}  // namespace

std::vector<std::pair<StepTime, double>> step_times(Session& session, const std::string& function) {
  session.run(function);  // a profile lists only steps that ran
  std::vector<StepTime> before = session.profile();
  std::vector<std::vector<double>> seconds(before.size());
  for (int round = 0; round < kRounds + kWarmup; ++round) {
    session.run(function);
    std::vector<StepTime> after = session.profile();
    for (size_t s = 0; s < after.size(); ++s) {
      if (round >= kWarmup) seconds[s].push_back(after[s].seconds - before[s].seconds);
    }
    before = std::move(after);
  }
  std::vector<std::pair<StepTime, double>> result;
  for (size_t s = 0; s < before.size(); ++s) {
    if (before[s].function == function) result.emplace_back(before[s], median(seconds[s]));
  }
  return result;
}

CollectiveProbe collective_probe(Graph& g, const std::string& name, CollectiveKind kind,
                                 int64_t size, int64_t ranks, DType dtype) {
  const Dim pieces("pieces", ranks), elements("elements", size), parts("parts", size);
  const auto x = [&](const Shape& shape) {
    return g.parameter(name + ".x", shape, nn::normal(1), dtype);
  };
  if (kind == CollectiveKind::all_gather)
    return {rename(x({parts}), "parts", "elements").named(name), "parts"};
  if (kind == CollectiveKind::all_to_all) {
    const Dim rows("rows", ranks), along("along", size / ranks), across("across", size / ranks);
    return {reshape(x({pieces, along}), {rows, across}).named(name), "pieces,across"};
  }
  Tensor y = reduce_sum(x({pieces, elements}), {"pieces"});
  if (kind != CollectiveKind::reduce_scatter) return {y.named(name), "pieces"};
  return {rename(y, "elements", "parts").named(name), "pieces,parts"};
}

bool runs(const StepTime& step, CollectiveKind kind) {
  return step.collective == kind ||
         (kind == CollectiveKind::all_to_all && step.collective == CollectiveKind::exchange);
}

std::vector<KernelContext> kernels_in_context(Cluster& cluster, const CompileOptions& options,
                                              const Machine& machine) {
  nn::GptOptions size;
  size.layers = 2;
  size.d_model = 192;
  size.heads = 4;
  size.ff = 768;
  size.length = 96;
  size.vocab = 256;
  size.batch = 6 * options.mesh.size();
  Graph g;
  const nn::Model model = nn::gpt(g, size);
  const Minimized step = minimize(model.to_minimize(), constant(g, 1e-3), adam({}), {.clip = 1});
  CompileOptions compile = options;
  compile.functions = {{"train", {step.loss, step.gradient_norm}, true}};
  std::string axes;
  for (const MeshAxis& axis : options.mesh.axes()) axes += (axes.empty() ? "" : "+") + axis.name;
  compile.layout = Layout::parse("batch:" + axes);
  std::map<std::string, double> measured, predicted;
  double all = 0;
  Session session(g, cluster, compile);
  feed(session, model, size.vocab);
  for (const auto& [time, seconds] : step_times(session, "train")) {
    measured[time.kernel] += seconds;
    all += seconds;
  }
  for (const SimulatedStep& s : simulate(g, compile, machine).steps) {
    if (s.lane == 0) predicted[s.kernel] += s.seconds;
  }
  std::vector<KernelContext> context;
  for (const auto& [kernel, seconds] : predicted) {
    if (seconds > 0 && measured[kernel] > kCounts * all)
      context.push_back({kernel, measured[kernel] / seconds});
  }
  return context;
}

std::string busy_note(double load, int processors) {
  if (load < std::max(0.5, 0.05 * processors)) return "";
  return fmt::format(
      "the load average was {:.1f} on {} processor{} before this began, so others were at work and "
      "the profile says that this machine is slower than it is; calibrate again when it is idle",
      load, processors, processors == 1 ? "" : "s");
}

}  // namespace tessera::cli
