// Steps whose loss or gradient norm is far above those before.
#include "cli/spikes.h"

#include <cmath>

#include "cli/cli_run.h"
#include "support/expect_error.h"

using namespace tessera::test;
using tessera::cli::SpikeHistory;

TEST_CASE("spikes: limits follow the steps before", "[fast]") {
  SpikeHistory h;
  CHECK(h.spike(1e30, 1e30).empty());  // nothing is known yet
  for (int i = 0; i < 40; ++i) h.add(3 + 0.01 * (i % 10), 1 + 0.1 * (i % 10));
  const SpikeHistory::Limits most = h.limits();
  CHECK(most.loss > 3.3f);  // the median 3.05, and a tenth of it
  CHECK(most.loss < 3.4f);
  CHECK(most.grad_norm > 4.0f);  // the median 1.5, and four times 0.8
  CHECK(most.grad_norm < 5.0f);
  CHECK(h.spike(3.2, 1.9).empty());
  CHECK(h.spike(9, 1).starts_with("the loss 9 is above 3.3"));
  CHECK(h.spike(3, 90).starts_with("the gradient norm 90 is above 4."));
  CHECK(h.spike(NAN, 1).empty());  // --on-nonfinite is about these
  h.add(1e6, 1e6);
  CHECK(h.limits().loss == Approx(most.loss).epsilon(0.01));
  for (int i = 0; i < 128; ++i) h.add(6, 1.5);
  CHECK(h.spike(6.1, 1.5).empty());  // a lasting change is none
}

TEST_CASE("spikes: the history is kept to the bit", "[fast]") {
  SpikeHistory h;
  for (int i = 0; i < 200; ++i) h.add(std::sin(i) / 3, 1.0 / (i + 3));
  const SpikeHistory again = SpikeHistory::parse(h.to_string(), "ck");
  CHECK(again.to_string() == h.to_string());
  CHECK(again.limits().loss == h.limits().loss);
  CHECK(SpikeHistory::parse("", "ck").to_string().empty());
  for (const char* bad : {"1", "1,", "1,2 3", "a,b", "1,2 3,x", "1 2", "nan,1", "1,inf"}) {
    INFO(bad);
    expect_error(tessera::ErrorKind::io, {"'ck'", "metadata 'spikes'", "at character"},
                 [&] { SpikeHistory::parse(bad, "ck"); });
  }
  std::string many = "1,1";
  for (int i = 0; i < 128; ++i) many += " 1,1";
  expect_error(tessera::ErrorKind::io, {"129 steps", "128 at most"},
               [&] { SpikeHistory::parse(many, "ck"); });
}

namespace TESSERA_FILE {

CliResult train(const Folder& f, const std::string& arguments) {
  return run_in(f, TESSERA_OWN_MODELS,
                "train spikes --mesh data:2 --log log.jsonl --set batch=2 lr=0.01 clip=0 "
                "schedule=constant large=7 " +
                    arguments);
}

/// The step that is a spike under train.on_spike = warn.
int64_t spike_of(const Folder& f) {
  expect_success(train(f, "--steps 100"));
  const auto spikes = log_of(f, "log.jsonl", "spike");
  REQUIRE(!spikes.empty());
  return spikes[0].at("step");
}

TEST_CASE("cli: a spike is told, or its update is left out", "[cli]") {
  const Folder f;
  const int64_t step = spike_of(f);
  CHECK(step > 32);
  const auto warned = losses_of(f, "log.jsonl");
  CHECK(warned.at(step) > 100 * warned.at(step - 1));
  const CliResult r = train(f, "--steps 100 --set on_spike=skip");
  expect_success(r);
  CHECK(r.out.find("step " + std::to_string(step) + " is skipped (1 so far): the loss") !=
        std::string::npos);
  const auto left_out = losses_of(f, "log.jsonl");
  CHECK(left_out.at(step) == Approx(warned.at(step)).epsilon(1e-6));
  CHECK(left_out.at(step + 1) < 3 * left_out.at(step - 1));
  CHECK(warned.at(step + 1) != left_out.at(step + 1));
  CHECK(log_of(f, "log.jsonl", "skipped").back().at("skipped") == 1);
}

TEST_CASE("cli: a spike is rolled back, also across restarts, and its batches are left out",
          "[cli]") {
  const Folder f;
  const int64_t step = spike_of(f), back = (step - 1) / 10 * 10;
  const std::string flags = "--save-every 10 --set on_spike=rollback --checkpoint ";
  const CliResult r = train(f, "--steps 90 " + flags + "ck");
  expect_success(r);
  INFO(r.out);
  CHECK(r.out.find("back to step " + std::to_string(back) + ", and its batches " +
                   std::to_string(back) + " to " + std::to_string(step - 1) +
                   " are not seen again") != std::string::npos);
  const auto rolled = log_of(f, "log.jsonl", "rolled_back_to");
  REQUIRE(rolled.size() == 1);
  CHECK(rolled[0].at("rolled_back_to") == back);
  const auto losses = losses_of(f, "log.jsonl");
  CHECK(losses.at(step) < 1);
  CHECK(losses.size() == 90);
  // Stopped before the spike, and after it, and resumed.
  expect_success(train(f, "--steps " + std::to_string(step - 2) + " " + flags + "other"));
  expect_success(train(f, "--resume --steps " + std::to_string(step + 15) + " " + flags + "other"));
  expect_success(train(f, "--resume --steps 90 " + flags + "other"));
  CHECK(losses_of(f, "log.jsonl").at(90) == losses.at(90));
  expect_failure(train(f, "--set on_spike=rollback"), 1,
                 {"train.on_spike=rollback", "--checkpoint DIR and --save-every N"}, "tessera");
}

TEST_CASE("cli: a spike that rollbacks do not cure ends the job", "[cli]") {
  const Folder f;
  const CliResult r = train(
      f, "--steps 100 --save-every 10 --checkpoint ck --set on_spike=rollback large=-1 jump=45");
  expect_failure(r, 1, {"spikes again after 3 rollbacks to step ", "lower train.lr"}, "tessera");
}

}  // namespace TESSERA_FILE
