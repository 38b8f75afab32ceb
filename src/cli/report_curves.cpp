// The curves of a report.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/fail.h"
#include "cli/run_log.h"
#include "pages/page.h"

namespace tessera::cli {

namespace {

using pages::Json;
using pages::Page;

/// The numbers of a job by step, token and second of training.
struct Axes {
  std::vector<double> steps, tokens, seconds;
};

Axes axes_of(const RunLog& log) {
  Axes axes{log.step_numbers(), {}, {}};
  const std::vector<double> ms = log.column("ms"), rate = log.column("tokens_per_s");
  double tokens = 0, seconds = 0;
  for (size_t i = 0; i < ms.size(); ++i) {
    if (std::isfinite(ms[i])) seconds += ms[i] / 1e3;
    if (std::isfinite(ms[i]) && std::isfinite(rate[i])) tokens += rate[i] * ms[i] / 1e3;
    axes.seconds.push_back(seconds);
    axes.tokens.push_back(tokens);
  }
  return axes;
}

/// Where an axis is at a step: its value at the last step that is not after it.
double at_step(const Axes& axes, const std::vector<double>& values, int64_t step) {
  const auto after =
      std::upper_bound(axes.steps.begin(), axes.steps.end(), static_cast<double>(step));
  return after == axes.steps.begin() ? 0
                                     : values[static_cast<size_t>(after - axes.steps.begin()) - 1];
}

/// The charts of all jobs of a page, one below the other in the same colours.
class Curves {
 public:
  explicit Curves(const std::vector<RunLog>& logs) : logs_(logs) {
    for (const RunLog& log : logs) axes_.push_back(axes_of(log));
  }

  void add_to(Page& page) const {
    page.begin_grid();
    chart(page, "loss", "", true, {{"loss", ""}}, true);
    chart(page, "gradient norm", "", true, {{"grad_norm", ""}});
    chart(page, "learning rate", "", false, {{"lr", ""}});
    chart(page, "tokens/s", "", false, {{"tokens_per_s", ""}});
    if (logs_.size() == 1) {
      chart(page, "time of a step", "s", true,
            {{"ms", "step"},
             {"data_ms", "waiting for data"},
             {"slowest_ms", "own work, slowest rank"},
             {"median_ms", "own work, median rank"},
             {"planned_ms", "planned"}});
    } else {
      chart(page, "time of a step", "s", true, {{"ms", ""}});
    }
    chart(page, "share of peak", "%", false, {{"peak_share", ""}});
    for (const std::string& field : own_metrics()) chart(page, field, "", false, {{field, ""}});
    saves(page);
    page.end_grid();
  }

 private:
  using Fields = std::vector<std::pair<const std::string, std::string>>;

  /// Fields of steps that no chart shows and that are none of ours.
  std::set<std::string> own_metrics() const {
    static const std::set<std::string> known = {
        "step",       "steps",        "loss",         "grad_norm",  "lr",           "ms",
        "planned_ms", "tokens_per_s", "flops_per_s",  "peak_share", "memory_bytes", "eta_s",
        "skipped",    "loss_scale",   "slowest_rank", "slowest_ms", "median_ms",    "data_ms"};
    std::set<std::string> own;
    for (const RunLog& log : logs_) {
      for (const auto& [field, at] : log.fields) {
        if (!known.contains(field) && own.size() < 12) own.insert(field);
      }
    }
    return own;
  }

  static Json series(std::string name, size_t color, std::vector<double> y, const Axes& axes,
                     double factor) {
    for (double& v : y) v *= factor;
    Json x;
    Json ys;
    for (const auto& [key, values] :
         {std::pair{"step", &axes.steps}, {"tokens", &axes.tokens}, {"time", &axes.seconds}}) {
      std::vector<double> xs = *values, copy = y;
      pages::thin(xs, copy);
      x[key] = pages::numbers(xs, 7);
      ys = pages::numbers(copy);  // the same for all: chosen by y
    }
    return {{"name", std::move(name)}, {"color", color}, {"x", x}, {"y", ys}};
  }

  void chart(Page& page, const std::string& title, const char* unit, bool log_scale,
             const Fields& shown, bool with_evaluations = false) const {
    Json all = Json::array();
    bool positive = true;
    double low = INFINITY, high = 0;
    for (size_t r = 0; r < logs_.size(); ++r) {
      for (size_t f = 0; f < shown.size(); ++f) {
        const auto& [field, label] = shown[f];
        const std::vector<double> y = logs_[r].column(field);
        double most = 0;
        for (const double v : y) {
          if (!std::isfinite(v)) continue;
          most = std::max(most, std::abs(v));
          positive = positive && v >= 0;
          if (v > 0) low = std::min(low, v);
        }
        high = std::max(high, most);
        if (most == 0) continue;  // not given, or not used: 0 without a machine
        std::string name = logs_.size() > 1 ? logs_[r].name : label;
        if (name.empty() && with_evaluations) name = "training";
        all.push_back(series(std::move(name), logs_.size() > 1 ? r : f, y, axes_[r],
                             std::string(unit) == "s" ? 1e-3 : 1));
      }
      if (with_evaluations) evaluations(r, all);
    }
    if (all.empty()) return;
    Json y = {{"label", title}, {"unit", unit}};
    if (log_scale && positive) y["log"] = high > 10 * low;
    page.chart({{"kind", "xy"},
                {"title", title},
                {"xs", x_axes()},
                {"y", y},
                {"smooth", true},
                {"series", all},
                {"marks", marks()}});
  }

  void evaluations(size_t r, Json& all) const {
    std::vector<double> y;
    Axes axes;
    for (const auto& [step, record] : logs_[r].evaluations) {
      y.push_back(number_of(record, "eval_loss"));
      axes.steps.push_back(static_cast<double>(step));
      axes.tokens.push_back(at_step(axes_[r], axes_[r].tokens, step));
      axes.seconds.push_back(at_step(axes_[r], axes_[r].seconds, step));
    }
    if (y.empty()) return;
    all.push_back(series(logs_.size() > 1 ? logs_[r].name + ", held out" : "held out",
                         logs_.size() > 1 ? r : 1, y, axes, 1));
    all.back()["dash"] = true;
  }

  void saves(Page& page) const {
    if (logs_.size() > 1 || logs_[0].saves.empty()) return;
    Json all = Json::array();
    const std::vector<std::pair<const char*, const char*>> fields = {{"save_ms", "copy"},
                                                                     {"save_wait_ms", "wait"}};
    for (size_t f = 0; f < fields.size(); ++f) {
      std::vector<double> x, y;
      for (const auto& [step, record] : logs_[0].saves) {
        x.push_back(static_cast<double>(step));
        y.push_back(number_of(record, fields[f].first) / 1e3);
      }
      pages::thin(x, y);
      all.push_back({{"name", fields[f].second},
                     {"points", true},
                     {"x", {{"step", pages::numbers(x)}}},
                     {"y", pages::numbers(y)}});
    }
    page.chart({{"kind", "xy"},
                {"title", "time of a save"},
                {"xs", {{{"key", "step"}, {"label", "step"}, {"unit", "#"}}}},
                {"y", {{"label", "what the step paid"}, {"unit", "s"}}},
                {"series", all}});
  }

  Json x_axes() const {
    Json xs = {{{"key", "step"}, {"label", "step"}, {"unit", "#"}}};
    const auto any = [&](auto values) {
      return std::any_of(axes_.begin(), axes_.end(), [&](const Axes& a) {
        return !(a.*values).empty() && (a.*values).back() > 0;
      });
    };
    if (any(&Axes::tokens)) xs.push_back({{"key", "tokens"}, {"label", "tokens"}, {"unit", "#"}});
    if (any(&Axes::seconds))
      xs.push_back({{"key", "time"}, {"label", "time in steps"}, {"unit", "s"}});
    return xs;
  }

  Json marks() const {
    constexpr size_t kMost = 60;
    Json list = Json::array();
    for (size_t r = 0; r < logs_.size(); ++r) {
      for (const RunEvent& e : logs_[r].events) {
        if (list.size() >= kMost) break;
        list.push_back({{"name", e.kind},
                        {"text", e.kind + (e.text.empty() ? "" : ": " + e.text)},
                        {"x",
                         {{"step", e.step},
                          {"tokens", at_step(axes_[r], axes_[r].tokens, e.step)},
                          {"time", at_step(axes_[r], axes_[r].seconds, e.step)}}}});
      }
    }
    return list;
  }

  const std::vector<RunLog>& logs_;
  std::vector<Axes> axes_;
};

}  // namespace

void add_curves(pages::Page& page, const std::vector<RunLog>& logs) { Curves(logs).add_to(page); }

}  // namespace tessera::cli
