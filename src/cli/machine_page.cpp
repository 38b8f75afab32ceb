#include "base/fail.h"
#include "cli/command_pages.h"
#include "pages/page.h"

namespace tessera::cli {

namespace {

pages::Json collective_curves(const Machine& machine) {
  pages::Json all = pages::Json::array();
  for (const CollectiveRate& c : machine.collectives) {
    std::vector<double> bytes, seconds;
    for (const auto& [b, s] : c.measured) bytes.push_back(b), seconds.push_back(s);
    all.push_back({{"name", fmt::format("{} of {} ({})", c.kind, c.ranks, c.link)},
                   {"x", {{"b", pages::numbers(bytes)}}},
                   {"y", pages::numbers(seconds)}});
  }
  return all;
}

}  // namespace

std::string machine_page(const Machine& machine, const std::string& path) {
  pages::Page page("machine profile",
                   fmt::format("{}, {}; {}", machine.device, machine.date, path));
  const MatmulRate& rate = machine.matmuls[0];
  page.cards({{pages::with_unit(rate.flops, "FLOP/s"), "matmuls"},
              {pages::with_unit(machine.memory_rates.back().bandwidth, "B/s"), "memory"},
              {pages::with_unit(machine.launch, "s"), "a step besides its work"},
              {pages::with_unit(machine.residuals[0].second, "%"), "mean error of the fit"}});
  page.section("matmuls", "Matmuls");
  pages::Json work = pages::Json::array(), speed = pages::Json::array(), fit = pages::Json::array(),
              tips = pages::Json::array(), rows = pages::Json::array();
  Machine fitted = machine;  // without samples the formula alone predicts
  fitted.samples.clear();
  for (const MatmulSample& s : machine.samples) {
    const double flops =
        2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
    const double seconds = fitted.matmul_seconds(s.dtype, s.m, s.n, s.k);
    work.push_back(flops);
    speed.push_back(flops / s.seconds);
    fit.push_back(flops / seconds);
    tips.push_back(fmt::format("{} x {} x {}", s.m, s.n, s.k));
    rows.push_back({{"m", s.m},
                    {"n", s.n},
                    {"k", s.k},
                    {"seconds", s.seconds},
                    {"rate", flops / s.seconds},
                    {"off", seconds / s.seconds - 1}});
  }
  page.chart(
      {{"kind", "xy"},
       {"title", "rate of a matmul by its size"},
       {"xs", {{{"key", "w"}, {"label", "operations of the matmul"}, {"unit", "FLOP"}}}},
       {"xlog", true},
       {"y", {{"label", "rate"}, {"unit", "FLOP/s"}, {"log", true}}},
       {"series",
        {{{"name", "measured"},
          {"points", true},
          {"x", {{"w", work}}},
          {"y", speed},
          {"tips", tips}},
         {{"name", "fit"}, {"points", true}, {"x", {{"w", work}}}, {"y", fit}, {"tips", tips}}}}});
  page.table(
      "m: m [#] | n: n [#] | k: k [#] | seconds: took [s] | rate: rate [FLOP/s] | "
      "off: fit is off by [%]",
      rows, "No matmul was measured.");
  page.section("collectives", "Collectives");
  if (machine.collectives.empty()) {
    page.text("One rank has no collectives to measure. Give --mesh, or start under a launcher.");
  } else {
    page.chart({{"kind", "xy"},
                {"title", "time of a collective by what a rank sends"},
                {"xs", {{{"key", "b"}, {"label", "sent by a rank"}, {"unit", "B"}}}},
                {"xlog", true},
                {"y", {{"label", "time"}, {"unit", "s"}, {"log", true}}},
                {"series", collective_curves(machine)}});
  }
  page.section("profile", "The profile");
  page.command(machine.to_toml());
  return page.html();
}

}  // namespace tessera::cli
