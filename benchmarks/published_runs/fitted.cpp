// The constants that were fitted on published runs: their values, and the rows. A run that is left
// out (Run::left_out) is predicted without those that were fitted on its own system: they have a
// value that comes from elsewhere.
#include "base/fail.h"
#include "benchmarks/published_runs/runs.h"

namespace tessera::runs {

namespace {

struct Row {
  Constant constant;
  const char* system;  ///< part of Run::system
  const char* other;   ///< not part of it, unless ""
  double fitted, outside;
};

constexpr Row kRows[] = {
    // Rates of A100's matmuls: 0.79 of the data sheet, from Korthikanti et al. 2022 (4 rows) and
    // the smallest model of vTrain. Outside: with which llm-foundry's rows on A100 have a mean
    // signed error of 0.
    {Constant::a100_products, "megatron", "bridge", 1, 1.05},
    // Of H100's: what 500 W hold, from torchtitan, December 2024, tables 1 and 3 (6 rows). Outside:
    // as above, with its rows of bfloat16 on H100.
    {Constant::h100_products, "torchtitan", "", 1, 1.03},
    // Of GB300's: Llama 3 8B of Megatron-Bridge, 25.11 (2 rows). Outside: attention's backward with
    // 32,768 tokens, which lasts long enough to be held by power, takes 1.13 to 1.22 times as long
    // on GB200 (cudnn-frontend, benchmark/sdpa_benchmark_training, cuDNN 9.22: 71.8 and 59.0 ms
    // causal, 139.4 and 123.3 not, 82.3 and 68.5, 160.0 and 142.1 if deterministic).
    {Constant::ultra_products, "bridge", "", 1.23, 1.17},
    // GPT-OSS 120B of Megatron-Bridge, 26.06 and 26.06.01, on GB200 and GB300 (4 rows): with
    // kSlowBiasGradient, one product takes a third of what all expect of it. Why is not known.
    // Outside: with which three runs of NeMo AutoModel on GB200 have a mean signed error of 0
    // (automodel.csv, GPT-OSS with four and eight examples a microbatch).
    {Constant::odd_products, "bridge", "", 1.8, 1.7},
    // Megatron-Bridge's guide to overlapping expert parallelism: 24.71 and 20.99 s, 41.25 and
    // 31.31 s a step without and with it, on 16 H100. Outside: sending takes 32 of 148
    // multiprocessors (moe_hybridep_num_sms), so that products have 0.78 of their rate, and takes
    // 1.2 times as long, as other transfers do (Machine::overlap): 1 + 1.2 * 0.78 - 1.2.
    {Constant::hidden_sending, "bridge", "", 0.5, 0.74},
    // Conversions, copies to contiguous memory, strided access: torchtitan's two rows without
    // compilation.
    {Constant::eager_traffic, "torchtitan", "", 1.4, 1},
};

}  // namespace

double value_of(Constant constant, const Run& run) {
  const auto says = [&](const std::string& word) {
    return run.system.find(word) != std::string::npos;
  };
  for (const Row& row : kRows) {
    if (row.constant != constant) continue;
    const bool is_own = says(row.system) && (*row.other == 0 || !says(row.other));
    return run.left_out && is_own ? row.outside : row.fitted;
  }
  fail(ErrorKind::internal, "no such constant");
}

double product_rate(const std::string& machine, const Run& run) {
  Run other = run;
  other.left_out = false;
  const auto ratio = [&](Constant constant) {
    return value_of(constant, run) / value_of(constant, other);
  };
  double rate = 1;
  if (machine.starts_with("a100")) rate = ratio(Constant::a100_products);
  if (machine.starts_with("h")) rate = ratio(Constant::h100_products);
  if (machine == "gb300") rate = ratio(Constant::ultra_products);
  return rate;
}

}  // namespace tessera::runs
