// The loss, metrics and accuracy of held-out data.
#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "cli/build_model.h"
#include "cli/commands.h"

namespace tessera::cli {

Evaluator::Evaluator(const Job& job, Cluster& cluster)
    : job_(job), cluster_(cluster), source_(open_data(job, true)) {
  cluster.require_same({{"the evaluation data", source_ ? source_->fingerprint() : "none"}});
  if (!source_) return;
  BatchOptions options = BatchOptions::evaluation();
  options.bounded = true;
  batcher_ = std::make_unique<Batcher>(*source_, job.config.integer("train.batch"), options);
}

Session& Evaluator::session() {
  if (session_) return *session_;
  store_parameters(job_.config, graph_);
  model_ = build_model(job_, graph_, job_.config.integer("train.batch"), true);
  FunctionSpec function{"eval", {}, false};
  means_ = model_.metrics;
  means_.insert(means_.begin(), {"loss", model_.loss, model_.weight});
  add_outputs(means_, function);
  add_outputs({{"logits", model_.logits}}, function);
  CompileOptions compile{job_.mesh,
                         job_.layout,
                         {function},
                         static_cast<uint64_t>(job_.config.integer("train.seed")),
                         threads_of(job_)};
  compile.device = job_.device;
  compile.strict_chunks = strict_chunks_of(job_.config);
  session_ = std::make_unique<Session>(graph_, cluster_, compile);
  return *session_;
}

namespace {
/// The same rules, each of which may match nothing: training has tensors that an evaluation lacks,
/// such as gradients, and has checked the rules.
Layout without_demands(const Layout& layout) {
  std::string text;
  for (const LayoutRule& rule : layout.rules()) {
    std::string optional = rule.text;
    if (!rule.optional) optional.insert(optional.find_last_of(":="), "?");
    text += optional + ";";
  }
  return Layout::parse(text);
}
}  // namespace

void Evaluator::prepare_for_training() {
  job_.layout = without_demands(job_.layout);
  session();
}

Evaluation Evaluator::run(Session& trained) {
  const std::vector<std::string> has = trained.program().stored_names();
  for (const std::string& name : session().program().stored_names()) {
    const std::string average = "optimizer." + name + ".ema";
    if (std::find(has.begin(), has.end(), average) != has.end()) {
      session_->assign(name, trained.fetch(average));  // state may have another layout
    } else {
      session_->copy_from(trained, name);  // same layout, so slices are equal
    }
  }
  return run();
}

/// Number of rows of the last batch whose largest logit is at their label.
/// A row with a NaN is no hit.
int64_t Evaluator::count_hits(int64_t rows) {
  const Array logits = session_->fetch(model_.logits.name()), labels = session_->fetch("labels");
  const int64_t classes = logits.sizes.back();
  int64_t hits = 0;
  for (int64_t r = 0; r < rows; ++r) {
    int64_t best = 0;
    bool is_nan = false;
    for (int64_t c = 0; c < classes; ++c) {
      const double logit = logits.at(r * classes + c);
      is_nan |= std::isnan(logit);
      if (logit > logits.at(r * classes + best)) best = c;
    }
    hits += !is_nan && best == static_cast<int64_t>(labels.at(r));
  }
  return hits;
}

Evaluation Evaluator::run() {
  session();
  std::vector<double> sums(means_.size()), weights(means_.size());
  int64_t hits = 0;
  bool has_labels = !model_.logits.empty() && model_.logits.shape().rank() == 2;
  has_labels = has_labels && std::any_of(model_.inputs.begin(), model_.inputs.end(),
                                         [](const Tensor& t) { return t.name() == "labels"; });
  for (int64_t s = 0; s < batcher_->steps(); ++s) {
    const int64_t rows = batcher_->feed(*session_, s);
    session_->run("eval");
    for (size_t i = 0; i < means_.size(); ++i) {
      const Metric& m = means_[i];
      const double value = session_->fetch_scalar(m.value.name());
      sums[i] += m.weight.empty() ? value * static_cast<double>(rows) : value;
      weights[i] +=
          m.weight.empty() ? static_cast<double>(rows) : session_->fetch_scalar(m.weight.name());
    }
    if (has_labels) hits += count_hits(rows);
  }
  const auto mean = [&](size_t i) { return weights[i] == 0 ? 0 : sums[i] / weights[i]; };
  Evaluation result{mean(0)};
  const double examples = static_cast<double>(source_->examples());
  if (has_labels) result.accuracy = static_cast<double>(hits) / examples;
  for (size_t i = 1; i < means_.size(); ++i) result.metrics.emplace_back(means_[i].name, mean(i));
  return result;
}

}  // namespace tessera::cli
