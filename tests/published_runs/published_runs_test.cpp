// Published runs: the file's format, what is wrong with bad rows, and a few facts.
#include <fstream>

#include "benchmarks/published_runs/report.h"
#include "cli/cli_run.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "support/io_folder.h"

namespace tessera::test {

using runs::RunReport, runs::RunsReport, runs::SourceReport, runs::simulate_runs;

namespace TESSERA_FILE {

const std::string kHeader =
    "system,model,params_b,layers,hidden,heads,kv_heads,ffn,seq,vocab,global_batch,micro_batch,"
    "gpus,"
    "gpu_kind,tp,pp,interleave,dp,cp,sp,recompute,dtype,iter_s,tflops_per_gpu,mfu_pct,source\n";
/// Korthikanti et al. 2022, table 5; llm-foundry's and torchtitan's own tables.
const std::string kGpt =
    "Megatron-LM,GPT 22B,22,48,6144,64,64,24576,2048,51200,4,4,8,A100-80GB,8,1,1,1,1,0,full,fp16,"
    "1.42,,,\"Korthikanti+ 2022, table 5\"\n";
const std::string kMpt =
    "llm-foundry FSDP FULL_SHARD,MPT "
    "7b,6.659,32,4096,32,32,16384,2048,50368,96,6,8,a100_80gb,1,1,1,8,"
    "1,0,none,amp_bf16,,200,,\"llm-foundry (\"\"A100 80GB\"\", 1600 Gbps)\"\n";
const std::string kLlama =
    "torchtitan FSDP2+compile,Llama3.1 8B,8.03,32,4096,32,8,14336,8192,128256,256,2,128,"
    "H100-96GB-HBM2e-500W,1,1,1,128,1,0,selective,bf16,2.515,,,torchtitan Table 3\n";

std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

RunsReport simulated(const std::string& rows) {
  Folder f;
  return simulate_runs(f.write("runs.csv", kHeader + rows));
}

/// The last row fails, with these words.
void expect_bad(const std::vector<std::string>& words, const std::string& rows) {
  const RunsReport report = simulated(rows);
  CHECK(report.failed == 1);
  for (const std::string& word : words) {
    INFO(report.rows.back().failure);
    CHECK(report.rows.back().failure.find(word) != std::string::npos);
  }
}

TEST_CASE("published runs are predicted", "[runs]") {
  const RunsReport r = simulated(kGpt + kMpt + kLlama);
  REQUIRE(r.rows.size() == 3);
  CHECK(r.timed == 3);
  CHECK(r.test_rows == 1);
  for (const RunReport& row : r.rows) {
    INFO(row.model << ": " << row.predicted << " measured " << row.measured);
    CHECK(row.error < 0.2);
    CHECK(row.memory > 1e9);
  }
  CHECK(r.rows[0].calibrates);
  CHECK(r.rows[0].tensor > 0);
  CHECK(r.rows[0].bubble == Approx(0).margin(1e-9));
  CHECK(r.rows[1].measured == Approx(5.295).epsilon(0.01));  // from the printed rate
  CHECK(r.rows[1].source == "llm-foundry");
  CHECK(r.rows[2].data > 0);
  CHECK(r.by_source.size() == 3);
}

TEST_CASE("what a row changes changes the prediction", "[runs]") {
  const auto seconds = [](const std::string& row) { return simulated(row).rows[0].predicted; };
  const double base = seconds(kGpt);
  CHECK(seconds(with(kGpt, "full", "none")) < 0.85 * base);
  const std::string staged = with(with(kGpt, ",4,4,8,", ",16,1,16,"), "8,1,1,1,1,0", "8,2,1,1,1,0");
  CHECK(simulated(staged).rows[0].bubble > 0);
  CHECK(seconds(with(staged, "8,2,1,1", "8,2,2,1")) < seconds(staged));
  CHECK(seconds(with(kGpt, "1,1,0,full", "1,1,1,full")) == Approx(base).epsilon(0.1));  // sp
  const double slow = seconds(with(kMpt, "1600 Gbps", "100 Gbps"));
  CHECK(slow == seconds(kMpt));  // one node
  const std::string wide = with(with(kMpt, ",96,6,8,", ",768,6,64,"), "1,1,1,8,", "1,1,1,64,");
  CHECK(seconds(with(wide, "1600 Gbps", "100 Gbps")) > 1.2 * seconds(wide));
  CHECK(seconds(with(kLlama, "bf16", "fp8")) < 0.9 * seconds(kLlama));
  CHECK(seconds(with(kLlama, "+compile", "")) > seconds(kLlama));
  const RunsReport chosen = simulated(with(kGpt, ",4,4,8,", ",4,,8,"));
  CHECK(chosen.rows[0].micro_batch > 0);
  CHECK(simulated(with(kGpt, "1.42", "OOM")).rows[0].ran_out);
}

// Llama 3 405B on 16,384 H100 (Dubey et al. 2024, table 4): 8,192 tokens with 16-way data
// parallelism, 131,072 tokens with 16 context-parallel ranks of two hosts each; 126 layers in 16
// stages, of which the first and the last have seven.
TEST_CASE("stages of unlike sizes, and contexts over hosts", "[runs]") {
  const auto llama = [](const char* sequence, const char* dp, const char* cp, const char* v) {
    const RunsReport r =
        simulated(std::string("Llama 3,405B,405,126,16384,128,8,53248,") + sequence + ",128256," +
                  (std::string(cp) == "16" ? "128" : "2048") + ",1,16384,H100-80GB,8,16," + v +
                  "," + dp + "," + cp + ",1,none,bf16,,,,x\n");
    INFO(r.rows[0].failure);
    REQUIRE(r.failed == 0);
    return r.rows[0];
  };
  const RunReport blank = llama("8192", "128", "1", ""), eight = llama("8192", "128", "1", "8"),
                  seven = llama("8192", "128", "1", "7"), one = llama("8192", "128", "1", "1"),
                  wide = llama("131072", "8", "16", "");
  CHECK(blank.predicted == Approx(6.74).epsilon(0.1));  // 400 TFLOP/s
  CHECK(blank.predicted <= eight.predicted);
  CHECK(eight.bubble < 0.2 * one.bubble);
  CHECK(seven.compute == Approx(one.compute).epsilon(0.02));  // no stage has more than 8 layers
  // The same tokens: more attention, one gather of keys and values a layer and pass.
  CHECK(wide.predicted == Approx(15.3).epsilon(0.15));
  CHECK(wide.tensor < 0.5 * wide.compute);
}

// A matmul of half the bytes is at most twice as fast. Blocks of scales cost less than one scale
// that must be known first, as an operand is read once.
TEST_CASE("dtypes of matmuls", "[runs]") {
  const std::string gb = with(kLlama, "H100-96GB-HBM2e-500W", "GB200");
  const auto seconds = [](const std::string& row, const char* dtype) {
    const RunsReport r = simulated(with(row, "bf16", dtype));
    INFO(r.rows[0].failure);
    REQUIRE(r.failed == 0);
    return r.rows[0].predicted;
  };
  const double sixteen = seconds(gb, "bf16"), tensor = seconds(gb, "fp8-tensorwise"),
               micro = seconds(gb, "mxfp8"), four = seconds(gb, "nvfp4");
  CHECK(tensor < 0.95 * sixteen);
  CHECK(micro < 0.95 * sixteen);
  CHECK(four < micro);
  CHECK(four > 0.3 * sixteen);
  for (const char* same : {"fp8", "amp_fp8", "FP8-CS", "float8", "fp8_current"})
    CHECK(seconds(gb, same) == tensor);
  CHECK(seconds(gb, "fp8-mx") == micro);
  CHECK(seconds(gb, "fp8-delayed") < tensor);  // one pass less over each operand
  // Scales of rows are found for both uses of an operand, and results scaled afterwards.
  CHECK(seconds(gb, "fp8-rowwise") > 1.05 * tensor);
  CHECK(seconds(kLlama, "fp8-blockwise") < seconds(kLlama, "bf16"));
}

// What is kept is not computed again: nothing < attention < every second product and all that is
// cheap < everything, in time; the other way round in memory.
TEST_CASE("recompute policies", "[runs]") {
  const auto run = [](const std::string& row, const char* policy) {
    const RunsReport r = simulated(with(row, "selective", policy));
    INFO(r.rows[0].failure);
    REQUIRE(r.failed == 0);
    return r.rows[0];
  };
  const RunReport none = run(kLlama, "none"), core = run(kLlama, "core_attn"),
                  op = run(kLlama, "selective-per-op"), full = run(kLlama, "full");
  CHECK(none.predicted < core.predicted);
  CHECK(core.predicted < op.predicted);
  CHECK(op.predicted < full.predicted);
  CHECK(full.memory < 0.8 * none.memory);
  CHECK(op.memory < none.memory);
  CHECK(op.memory > full.memory);
  CHECK(run(kLlama, "selective").predicted == op.predicted);  // torchtitan's default
  // 1 x h^2 of keys is 0.25, of out 1, of up 3.5: of 13 h^2 in a layer 4.75 are computed again.
  const double again = (op.predicted - none.predicted) / (full.predicted - none.predicted);
  CHECK(again > 0.25);
  CHECK(again < 0.6);
  const double half = run(kLlama, "selective:2").predicted, all = full.predicted;
  CHECK(half - none.predicted == Approx((all - none.predicted) / 2).epsilon(0.02));
  CHECK(run(kLlama, "full:16").predicted == Approx(half));  // of 32 layers
  CHECK(run(kLlama, "\"[core_attn, layernorm, mlp]\"").predicted > core.predicted);
  CHECK(run(kLlama, "\"core_attn,mlp\"").predicted == run(kLlama, "mlp+core_attn").predicted);
  CHECK(run(kLlama, "layernorm").predicted < core.predicted);
  CHECK(run(kLlama, "mla_up_proj").predicted > none.predicted);
}

// Qwen3 235B-A22B: 128 experts of width 1,536, of which a token takes 8.
TEST_CASE("experts", "[runs]") {
  const std::string header = with(kHeader, ",source", ",source,experts,topk,ep,head_dim");
  const auto run = [&](const std::string& topk, const std::string& ep) {
    Folder f;
    return simulate_runs(
               f.write("runs.csv",
                       header +
                           "Megatron-Bridge,Qwen3 235B,235.1,94,4096,64,4,1536,4096,151936,1024,1,"
                           "256,H100,1,8,4,,1,0,none,bf16,,,,x,128," +
                           topk + "," + ep + ",128\n"))
        .rows[0];
  };
  const RunReport few = run("8", "8"), wide = run("8", "32");
  INFO(few.failure << wide.failure);
  REQUIRE(few.failure.empty());
  CHECK(few.predicted < wide.predicted);  // 32 ranks are of several hosts
  CHECK(run("16", "8").predicted > 1.3 * few.predicted);
  CHECK(run("129", "8").failure.find("topk 129 is more than experts 128") != std::string::npos);
  CHECK(run("8", "3").failure.find("experts 128 is no multiple of ep 3") != std::string::npos);
  CHECK(run("", "8").failure.find("'topk' is blank") != std::string::npos);
}

/// A mixture of experts as Megatron-Bridge's summary prints it.
RunReport bridged(const std::string& row) {
  Folder f;
  const std::string header = with(kHeader, ",source", ",source,experts,topk,ep,head_dim");
  const RunReport report = simulate_runs(f.write("runs.csv", header + row)).rows[0];
  INFO(report.failure);
  REQUIRE(report.failure.empty());
  return report;
}

std::string qwen(const std::string& gpu, const std::string& micro, const std::string& release) {
  return "Megatron-Bridge,Qwen3 30B-A3B,30.5,48,2048,32,4,768,4096,151936,512," + micro + ",8," +
         gpu + ",1,1,1,8,1,0,none,mxfp8,,,,\"Megatron-Bridge summary, " + release +
         " NeMo Container\",128,8,8,128\n";
}

std::string gpt_oss(const std::string& release) {
  return "Megatron-Bridge,GPT OSS 120B,116.8,36,2880,64,8,2880,4096,201088,1280,4,64,GB300,1,1,1,"
         "64,1,0,none,mxfp8,,,,\"Megatron-Bridge summary, " +
         release + " NeMo Container\",128,4,16,64\n";
}

// What a release of Megatron-Bridge does: a graph of the whole step and fused products from 26.06;
// a token to a rank once from 26.02.01.
TEST_CASE("experts by release", "[runs]") {
  const RunReport graph = bridged(qwen("GB300", "8", "26.06")),
                  parts = bridged(qwen("GB300", "8", "26.04"));
  CHECK(graph.predicted < 0.85 * parts.predicted);
  CHECK(bridged(qwen("GB300", "8", "26.08")).predicted == graph.predicted);
  CHECK(bridged(qwen("GB300", "8", "of some")).predicted == graph.predicted);  // the newest
  // Of 8 experts a token has 5.25 ranks, of 8.
  const double once = bridged(qwen("B200", "4", "26.02.01")).tensor,
               pairs = bridged(qwen("B200", "4", "26.02")).tensor;
  CHECK(once < 0.85 * pairs);
  CHECK(once > 0.5 * pairs);
  CHECK(bridged(qwen("B200", "4", "26.02.1.1")).predicted ==
        bridged(qwen("B200", "4", "26.08")).predicted);  // no number
}

// The dispatcher and the graphs are those of a model's recipe, which differ by GPU and release.
TEST_CASE("experts by recipe", "[runs]") {
  const auto gpt = [](const char* gpu, const char* release) {
    std::string row = with(gpt_oss(release), "mxfp8", "bf16");
    row = with(with(row, "GB300", gpu), "128,4,16,64", "128,4,8,64");
    return bridged(row);
  };
  const RunReport pairs = gpt("B200", "26.02"), once = gpt("B200", "26.04"),
                  again = gpt("B200", "26.04.01");
  CHECK(again.tensor == pairs.tensor);
  CHECK(again.tensor != once.tensor);
  CHECK(gpt("GB200", "26.04.01").tensor < 0.65 * gpt("GB200", "26.02").tensor);  // it overlaps
  const auto launched = [](const char* gpu) {
    return bridged(with(qwen(gpu, "1", "26.02.01"), "mxfp8", "fp8")).predicted;
  };
  CHECK(launched("H100") > launched("H200"));  // of H200 there is no recipe: as most, with graphs
  const auto staged = [](const char* release) {
    return bridged(std::string("Megatron-Bridge,Qwen3 235B-A22B,235.1,94,4096,64,4,1536,4096,"
                               "151936,8192,2,256,B300,1,8,1,32,1,0,none,mxfp8,,,,\"summary, ") +
                   release + " NeMo Container\",128,8,8,128\n");
  };
  CHECK(staged("26.04.01").tensor < 0.9 * staged("26.04").tensor);
}

// With few tokens a layer waits for its host: twice as many take as long.
TEST_CASE("experts wait for their host", "[runs]") {
  const double one = bridged(qwen("B200", "1", "25.11")).predicted,
               two = bridged(qwen("B200", "2", "25.11")).predicted;
  CHECK(two < 0.7 * one);  // half as many microbatches
  CHECK(bridged(qwen("B200", "2", "26.06")).predicted >
        0.8 * bridged(qwen("B200", "1", "26.06")).predicted);
}

/// As NeMo AutoModel prints a mixture of experts.
std::string automodel(const std::string& model, const std::string& batch, const std::string& gpus,
                      const std::string& rest) {
  return "NeMo AutoModel," + model + "," + batch + "," + gpus + ",1,1,1," +
         gpus.substr(0, gpus.find(',')) + ",1,0," + rest;
}

const std::string kQwen = "Qwen3 30B-A3B,30.5,48,2048,32,4,768,4096,151936";
const std::string kOss = "GPT OSS 120B,116.8,36,2880,64,8,2880,4096,201088";

// NeMo AutoModel's gate for benchmarks gives a token neighbours: 8 of 128 experts lie on one of 8
// ranks, but on two of 32.
TEST_CASE("experts that are neighbours", "[runs]") {
  const auto seconds = [](const std::string& row) { return bridged(row).predicted; };
  const auto qwen_on = [&](const char* gpus, const char* batch, const char* experts) {
    return seconds(
        automodel(kQwen, batch, gpus, std::string("full,bf16,,,,x,") + experts + ",128\n"));
  };
  const double eight = qwen_on("8,GB200", "512,16", "128,8,8");
  CHECK(eight == Approx(9.237).epsilon(0.05));
  CHECK(qwen_on("32,GB200", "2048,16", "128,8,32") >
        1.03 * qwen_on("32,GB200", "2048,16", "128,8,16"));
  CHECK(qwen_on("8,GB200", "512,16", "120,8,8") > 1.01 * eight);  // 15 on a rank
  CHECK(qwen_on("8,H100", "512,4", "128,8,8") == Approx(21.773).epsilon(0.05));
  // FlexAttention on Hopper.
  CHECK(seconds(automodel(kOss, "512,2", "64,H100", "none,bf16,,,,x,128,4,64,64\n")) ==
        Approx(4.30).epsilon(0.15));
}

// A token's copy takes HybridEP time for its bytes and for each rank of the group.
TEST_CASE("large groups of experts", "[runs]") {
  const std::string rack = with(gpt_oss("26.08"), "GB300", "GB200");
  const double few = bridged(rack).tensor,
               many = bridged(with(rack, "128,4,16,64", "128,4,64,64")).tensor;
  CHECK(many > 1.35 * few);  // 1.13 times the bytes
  CHECK(many < 2 * few);
}

// Sending hides behind another microbatch, so that of the first forward and of the last backward
// does not.
TEST_CASE("few microbatches hide less", "[runs]") {
  const double five = bridged(gpt_oss("26.08")).tensor,
               ten = bridged(with(gpt_oss("26.08"), ",1280,4,", ",2560,4,")).tensor;
  CHECK(ten / 2 < 0.95 * five);
  CHECK(ten / 2 > 0.85 * five);
}

// A window of 128 in every second layer: tiles of 128 queries have 256 keys, and a start and an end
// that take as long as 265, of (4,096 + 530) / 2.
TEST_CASE("windows of attention", "[runs]") {
  const std::string wide =
      "Megatron-Bridge,GPT OSS,30,24,512,512,8,512,4096,4096,64,4,8,B200,1,1,1,8,1,0,none,bf16,,,,"
      "\"summary, 26.04 NeMo Container\",8,1,8,64\n";
  const double ratio = bridged(wide).predicted / bridged(with(wide, "GPT OSS", "Other")).predicted;
  CHECK(ratio > 0.6);
  CHECK(ratio < 0.75);
}

// Transformer Engine's guide to profiling of matmuls: a layer of 4,096 and 16,384 wide with 15,872
// tokens on B300, forward, and the gradients of both operands. Training takes a little longer.
TEST_CASE("products on Blackwell Ultra", "[runs]") {
  const Machine b300 = Machine::load("b300");
  const auto layer = [&](const char* dtype) {
    double seconds = 0;
    const int64_t tokens = 15872;
    for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{
             {4096, 12288}, {4096, 4096}, {4096, 16384}, {16384, 4096}})
      seconds += b300.matmul_seconds(dtype, tokens, out, in) +
                 b300.matmul_seconds(dtype, tokens, in, out) +
                 b300.matmul_seconds(dtype, in, out, tokens);
    return seconds;
  };
  CHECK(layer("bfloat16") == Approx(1.063 * 13.1e-3).epsilon(0.05));
  CHECK(layer("float8") == Approx(1.126 * 6.81e-3).epsilon(0.05));
  CHECK(layer("mxfp8") == Approx(1.126 * 7.16e-3).epsilon(0.05));
  CHECK(layer("nvfp4") == Approx(1.126 * 3.76e-3).epsilon(0.05));
  const auto attention = [](const char* machine) {
    return Machine::load(machine).kernel("attention", "bfloat16").flops;
  };
  CHECK(attention("gb300") > 1.15 * attention("gb200"));
}

// GPT-OSS: biases of experts, one at a time, and clamps; a release with a slow kernel for the
// gradient of biases; sides of 2,880; a window in every second layer.
TEST_CASE("experts with biases", "[runs]") {
  const RunReport good = bridged(gpt_oss("26.06")), slow = bridged(gpt_oss("26.06.01"));
  CHECK(slow.predicted > 1.3 * good.predicted);
  CHECK(good.calibrates);
  CHECK_FALSE(bridged(gpt_oss("26.08")).calibrates);
  const auto other = [](const std::string& row) { return with(row, "GPT OSS", "Other"); };
  CHECK(bridged(other(gpt_oss("26.06.01"))).predicted ==
        bridged(other(gpt_oss("26.06"))).predicted);
  CHECK(bridged(gpt_oss("26.04")).predicted > bridged(other(gpt_oss("26.04"))).predicted);
  const std::string stages =
      "Megatron-Bridge,GPT OSS 120B,116.8,36,2880,64,8,2880,4096,201088,1280,1,64,H100,1,4,1,16,1,"
      "0,none,bf16,,,,\"Megatron-Bridge summary, 26.02.01 NeMo Container\",128,4,8,64\n";
  CHECK(bridged(stages).predicted == Approx(13.69).epsilon(0.03));
  const std::string even = with(gpt_oss("26.08"), ",2880,64,8,2880,", ",2944,64,8,2944,");
  CHECK(bridged(even).predicted < 0.9 * bridged(gpt_oss("26.08")).predicted);
}

// However large activations are, tensor parallelism gathers them, not weights: 12 examples of 8,192
// tokens are 0.8 GB, a layer's matrices for queries 34 MB.
TEST_CASE("tensor parallelism gathers activations", "[runs]") {
  const std::string row =
      "torchtitan FSDP2+TP+compile,Llama3.1 8B,8.03,32,4096,32,8,14336,8192,128256,96,12,64,"
      "H100-96GB-HBM2e-500W,8,1,1,8,1,1,selective-per-op,bf16,2.8068,,,x\n";
  const auto seconds = [](const std::string& text) { return simulated(text).rows[0].predicted; };
  CHECK(seconds(row) == Approx(2.8068).epsilon(0.1));
  CHECK(seconds(with(row, "+TP", "+AsyncTP")) == Approx(2.555).epsilon(0.1));
  CHECK(seconds(with(row, "bf16", "fp8-tensorwise")) == Approx(2.4198).epsilon(0.1));
  CHECK(seconds(with(row, "bf16", "fp8-rowwise")) == Approx(3.3135).epsilon(0.12));
}

// torchtitan, December 2024, table 6: 16 heads a rank, and ranks of one context in other hosts.
// Keys and values, repeated for all heads, and their gradients in float32 are awaited where they
// are sent; in a host that costs little. What PyTorch does one op at a time is not this.
TEST_CASE("context parallelism waits for what it sends, if it is compiled", "[runs]") {
  const std::string row =
      "torchtitan FSDP2+AsyncTP+PP+CP+compile,Llama3.1 405B,405.9,126,16384,128,8,53248,131072,"
      "128256,16,1,512,H100-96GB-HBM2e-500W,8,8,1,2,4,1,full,fp8,132.1,,,x\n";
  const auto seconds = [](const std::string& text) { return simulated(text).rows[0].predicted; };
  const double four = seconds(row);
  CHECK(four == Approx(132.1).epsilon(0.05));
  CHECK(seconds(with(with(row, "131072,128256,16,", "65536,128256,32,"), ",2,4,1,full",
                     ",4,2,1,full")) == Approx(87.15).epsilon(0.1));
  CHECK(seconds(with(row, "FSDP2+AsyncTP+PP+CP+compile", "NeMo")) < 0.95 * four);
  const std::string host =
      "torchtitan FSDP2+CP+compile,Llama3.1 8B,8.03,32,4096,32,8,14336,65536,128256,4,1,8,"
      "H100-96GB-HBM2e-500W,1,1,1,4,2,0,full,fp8,12.901,,,x\n";
  CHECK(seconds(host) == Approx(12.901).epsilon(0.05));
}

// Gradients of float32 take twice as long to reduce as those of 16 bits. What overlaps hides as
// long as there is compute, a layer at a time: twice the GPUs with half the examples each hide
// less.
TEST_CASE("reductions of gradients", "[runs]") {
  const std::string wide = with(with(kGpt, ",4,4,8,", ",16,4,32,"), "8,1,1,1,1,0", "8,1,1,4,1,0");
  const double half = simulated(wide).rows[0].data;
  CHECK(half > 0);
  CHECK(simulated(with(wide, "fp16", "bf16")).rows[0].data == Approx(2 * half).epsilon(0.02));
  const auto scaled = [](const char* batch, const char* sizes, const char* dp) {
    return simulated(std::string("MegaScale,GPT 175B,175,96,12288,128,128,49152,2048,64000,") +
                     batch + ",1," + sizes + ",A100-80GB,8,8,6," + dp +
                     ",1,1,selective,bf16,,,,\"x (1600 Gbps)\"\n")
        .rows[0];
  };
  const RunReport few = scaled("768", "256", "4"), many = scaled("768", "1024", "16");
  CHECK(few.data < 0.05 * few.predicted);
  CHECK(many.data < 0.05 * many.predicted);
  // Tensor parallelism hides as well: 65 and 59 % of the peak (Jiang et al. 2024, table 2).
  CHECK(few.tensor < 0.1 * few.compute);
  CHECK(many.predicted == Approx(8.9).epsilon(0.1));
}

// A system that is left out is predicted without what was fitted on it; others as before.
TEST_CASE("a system is left out", "[runs]") {
  Folder f;
  const std::string header = with(kHeader, ",source", ",source,experts,topk,ep,head_dim");
  const auto blank = [](std::string row) { return row.insert(row.size() - 1, ",,,,"); };
  const std::string path =
      f.write("runs.csv", header + gpt_oss("26.08") + qwen("B200", "4", "26.02") + blank(kGpt) +
                              blank(kMpt) + blank(kLlama) + blank(with(kLlama, "+compile", "")));
  const RunsReport all = simulate_runs(path), out = simulate_runs(path, nullptr, true);
  REQUIRE(all.failed == 0);
  REQUIRE(out.failed == 0);
  const auto ratio = [&](size_t row) { return out.rows[row].predicted / all.rows[row].predicted; };
  CHECK(ratio(0) < 0.97);  // products of odd sides by another system's runs
  CHECK(ratio(1) == 1);    // B200's rates are fitted on no run
  CHECK(ratio(2) < 0.99);  // A100's rate from llm-foundry
  CHECK(ratio(2) > 0.95);
  CHECK(ratio(3) == 1);
  CHECK(ratio(4) < 1);
  CHECK(ratio(4) > 0.97);  // H100's rate from llm-foundry
  CHECK(ratio(5) < 0.95);
  REQUIRE(out.by_system.size() == 4);  // those with a time
  CHECK(out.by_system[0].source == "megatron-lm");
  CHECK(out.by_system[2].rows == 1);
  REQUIRE(out.by_framework.size() == 3);
  CHECK(out.by_framework[2].source == "torchtitan");
  CHECK(out.by_framework[2].rows == 2);
  CHECK(all.rows[4].calibrates);
  CHECK_FALSE(all.rows[3].calibrates);
}

// Levels of the files in the repository; every fourth row, as all take half a minute.
TEST_CASE("errors on published runs stay where they are", "[runs]") {
  const std::string folder = std::string(TESSERA_SOURCE_DIR) + "/benchmarks/published_runs/";
  std::ifstream file(folder + "runs.csv");
  std::string line, rows;
  for (int i = 0; std::getline(file, line); ++i) {
    if (i == 0 || i % 4 == 1) rows += line + "\n";
  }
  Folder f;
  const RunsReport out = simulate_runs(f.write("some.csv", rows), nullptr, true);
  CHECK(out.failed == 0);
  CHECK(out.timed == 95);
  INFO("error " << out.error);
  CHECK(out.error < 0.065);
  for (const SourceReport& system : out.by_system) {
    if (system.source.find("fsdp2+cp") != std::string::npos) continue;  // not explained
    INFO(system.source << " " << system.error);
    CHECK(system.error < 0.1);
  }
  for (const SourceReport& framework : out.by_framework) {
    INFO(framework.source << " " << framework.error);
    CHECK(framework.error < 0.1);
  }
  const RunsReport other = simulate_runs(folder + "automodel.csv");
  CHECK(other.failed == 0);
  INFO("AutoModel " << other.error);
  CHECK(other.error < 0.09);
}

TEST_CASE("a machine of one's own prices all rows", "[runs]") {
  Folder f;
  const Machine slow = Machine::load("a100-40gb"), fast = Machine::load("h100");
  const std::string path = f.write("runs.csv", kHeader + kGpt + kMpt);
  const RunsReport a = simulate_runs(path, &slow), b = simulate_runs(path, &fast);
  for (size_t i = 0; i < 2; ++i) CHECK(b.rows[i].predicted < 0.7 * a.rows[i].predicted);
}

TEST_CASE("a bad row leaves the others as they are", "[runs]") {
  const RunsReport good = simulated(kGpt + kLlama);
  const RunsReport r = simulated(kGpt + with(kMpt, "a100_80gb", "TPUv4") + kLlama);
  REQUIRE(r.rows.size() == 3);
  CHECK(r.failed == 1);
  CHECK(r.timed == 2);
  CHECK(r.rows[1].failure.find("line 3: no machine profile for gpu_kind 'TPUv4'") !=
        std::string::npos);
  CHECK(r.rows[1].model == "MPT 7b");
  CHECK(r.error == good.error);
  CHECK(r.rows[2].predicted == good.rows[1].predicted);
  Folder f;
  CHECK(simulate_runs(f.write("bom.csv", "\xEF\xBB\xBF" + kHeader + kGpt)).failed == 0);
}

TEST_CASE("bad rows say where and what", "[runs][errors]") {
  expect_error(ErrorKind::io, {"cannot open runs '/nowhere.csv'"},
               [] { simulate_runs("/nowhere.csv"); });
  Folder f;
  expect_usage({"column 'tp' is missing"},
               [&] { simulate_runs(f.write("a.csv", with(kHeader, ",tp,", ",") + kGpt)); });
  expect_usage({"no header"}, [&] { simulate_runs(f.write("b.csv", "")); });
  expect_usage({"no runs below the header"}, [] { simulated(""); });
  expect_bad({"line 2: 3 fields; the header has 26"}, "a,b,c\n");
  expect_usage({"a quote that opens in line 2"},
               [] { simulated(with(kGpt, "table 5\"", "table 5")); });
  expect_bad({"line 3: 'layers' is 'many'"}, kMpt + with(kGpt, ",48,", ",many,"));
  expect_bad({"'hidden' is blank"}, with(kGpt, "6144", ""));
  expect_bad({"'gpus' is 7.5, not a whole number"}, with(kGpt, ",4,8,A100", ",4,7.5,A100"));
  expect_bad({"tp 8 x pp 1 x cp 1 x dp 1 is not gpus 16"}, with(kGpt, ",4,8,A100", ",4,16,A100"));
  expect_bad({"hidden 6144 is no multiple of heads 63"}, with(kGpt, ",64,64,", ",63,63,"));
  expect_bad({"heads 64 is no multiple of kv_heads 48"}, with(kGpt, ",64,64,", ",64,48,"));
  expect_bad({"global_batch 4 over dp 1 is no multiple of micro_batch 3"},
             with(kGpt, ",4,4,8,", ",4,3,8,"));
  expect_bad({"global_batch 97 is no multiple of dp 8"}, with(kMpt, ",96,6,", ",97,6,"));
  expect_bad({"recompute 'some' is none of none, full, full:LAYERS", "selective-per-op",
              "core_attn, layernorm"},
             with(kGpt, "full", "some"));
  expect_bad({"recompute 'core_attn+gate'", "unknown is 'gate'"},
             with(kGpt, "full", "core_attn+gate"));
  expect_bad({"recompute '[]' names nothing"}, with(kGpt, "full", "[]"));
  expect_bad({"dtype 'int4' is none of fp16, bf16, fp8-delayed", "mxfp8, nvfp4"},
             with(kGpt, "fp16", "int4"));
  expect_bad({"line 2: ", "float8"}, with(kGpt, "fp16", "fp8"));
  expect_bad({"machine 'h100-500w' has no [[matmul]] for dtype 'mxfp8'"},
             with(kLlama, "bf16", "mxfp8"));
  expect_bad({"interleave 5 is of pipelines, and pp is 1"}, with(kGpt, "8,1,1,1,1,", "8,1,5,1,1,"));
  expect_bad({"48 layers are too few"},
             with(with(kGpt, ",4,4,8,", ",64,1,512,"), ",8,1,1,1,", ",8,64,1,1,"));
  expect_bad({"line 2: no machine profile for gpu_kind 'TPUv4'"}, with(kGpt, "A100-80GB", "TPUv4"));
}

TEST_CASE("the program reports on published runs", "[runs][cli]") {
  Folder f;
  f.write(
      "runs.csv",
      "system,model,params_b,layers,hidden,heads,kv_heads,ffn,seq,vocab,global_batch,micro_batch,"
      "gpus,gpu_kind,tp,pp,interleave,dp,cp,sp,recompute,dtype,iter_s,tflops_per_gpu,mfu_pct,"
      "source\nMegatron-LM,GPT 22B,22,48,6144,64,64,24576,2048,51200,4,4,8,A100,8,1,1,1,1,0,full,"
      "fp16,1.42,,,one paper\n");
  const CliResult r = run_in(f, TESSERA_PUBLISHED_RUNS, "runs.csv --json r.json");
  expect_success(r);
  CHECK(r.out.find("one paper: 1 row, error ") != std::string::npos);
  const nlohmann::json report = json_of(f, "r.json");
  CHECK(report["rows"].size() == 1);
  CHECK(report["error"].get<double>() == report["by_source"]["one paper"]["error"].get<double>());
  CHECK(report["by_source"]["one paper"].contains("null_error"));
  CHECK(report["by_source"]["one paper"].contains("tau"));
  const CliResult out = run_in(f, TESSERA_PUBLISHED_RUNS, "runs.csv --leave-out --json r.json");
  expect_success(out);
  CHECK(out.out.find("megatron-lm: 1 row, error ") != std::string::npos);
  CHECK(out.out.find("all of megatron-lm: 1 row, error ") != std::string::npos);
  CHECK(nlohmann::json::parse(f.read("r.json"))["by_system"]["megatron-lm"]["error"] !=
        report["by_system"]["megatron-lm"]["error"]);
  f.write("bad.csv", "\xEF\xBB\xBF" + f.read("runs.csv") + "Megatron-LM,small,x\n");
  const CliResult one = run_in(f, TESSERA_PUBLISHED_RUNS, "bad.csv --json r.json");
  expect_success(one);
  CHECK(one.out.find("failed: bad.csv, line 3: 3 fields; the header has 26") != std::string::npos);
  CHECK(one.out.find("failed: 1 row\n") != std::string::npos);
  CHECK(json_of(f, "r.json")["rows"][1]["failure"].is_string());
  CHECK(json_of(f, "r.json")["rows"][1]["predicted"].is_null());
  std::string untimed = f.read("runs.csv");
  f.write("untimed.csv", untimed.replace(untimed.find("1.42"), 4, ""));
  CHECK(run_in(f, TESSERA_PUBLISHED_RUNS, "untimed.csv")
            .out.find("all 0 rows with a time: error -, tau -") != std::string::npos);
  f.write("none.txt", untimed.replace(untimed.find("A100"), 4, "TPU9"));
  expect_failure(run_in(f, TESSERA_PUBLISHED_RUNS, "none.txt"), 1,
                 {"no row of 'none.txt' can be predicted", "gpu_kind 'TPU9'"},
                 "bench_published_runs");
  expect_failure(run_in(f, TESSERA_PUBLISHED_RUNS, "none.csv"), 1, {"cannot open runs 'none.csv'"},
                 "bench_published_runs");
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
