#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "base/fail.h"
#include "base/files.h"
#include "benchmarks/published_runs/runs.h"

namespace tessera::runs {

namespace {

/// The records of a CSV file with quoted fields ("" is a quote), each with the number of its first
/// line.
std::vector<std::pair<int, std::vector<std::string>>> records(const std::string& path) {
  std::string text = read_text_file("runs", path);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);  // byte order mark of spreadsheets
  std::vector<std::pair<int, std::vector<std::string>>> result;
  std::vector<std::string> fields = {""};
  int line = 1, first = 1;
  bool quoted = false;
  const auto finish = [&] {
    if (fields.size() > 1 || !fields[0].empty()) result.emplace_back(first, fields);
    fields = {""};
    first = line + 1;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"' && quoted && i + 1 < text.size() && text[i + 1] == '"') {
      fields.back() += text[++i];
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else if (c == '\n' && !quoted) {
      finish();
      ++line;
    } else if (c != '\r') {
      fields.back() += c;
      if (c == '\n') ++line;
    }
  }
  TESSERA_REQUIRE(!quoted, "{}: a quote that opens in line {} is never closed", path, first);
  finish();
  return result;
}

const std::vector<std::string> kColumns = {
    "system", "model",  "params_b",       "layers",       "hidden",      "heads", "kv_heads",
    "ffn",    "seq",    "vocab",          "global_batch", "micro_batch", "gpus",  "gpu_kind",
    "tp",     "pp",     "interleave",     "dp",           "cp",          "sp",    "recompute",
    "dtype",  "iter_s", "tflops_per_gpu", "mfu_pct",      "source"};

/// One record, accessed by column names.
class Record {
 public:
  Record(const std::string& path, int line, const std::map<std::string, size_t>& columns,
         const std::vector<std::string>& fields)
      : path_(path), line_(line), columns_(columns), fields_(fields) {
    TESSERA_REQUIRE(fields.size() == columns.size(),
                    "{}, line {}: {} fields; the header has {} columns", path, line, fields.size(),
                    columns.size());
  }

  /// "" for a column that the file does not have.
  const std::string& text(const std::string& column) const {
    static const std::string none;
    const auto it = columns_.find(column);
    return it == columns_.end() ? none : fields_[it->second];
  }

  /// The number, at least `least`; `blank` for an empty field.
  double number(const std::string& column, double blank, double least) const {
    const std::string& field = text(column);
    if (field.empty()) {
      TESSERA_REQUIRE(!std::isnan(blank), "{}, line {}: '{}' is blank", path_, line_, column);
      return blank;
    }
    double value = 0;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    TESSERA_REQUIRE(error == std::errc() && end == field.data() + field.size() && value >= least,
                    "{}, line {}: '{}' is '{}', not a number of at least {}", path_, line_, column,
                    field, least);
    return value;
  }

  int64_t whole(const std::string& column, double blank) const {
    const double value = number(column, blank, 1);
    TESSERA_REQUIRE(value == std::floor(value) && value <= 1e15,
                    "{}, line {}: '{}' is {}, not a whole number of at most 1e15", path_, line_,
                    column, value);
    return static_cast<int64_t>(value);
  }

  template <class... Args>
  void need(bool ok, fmt::format_string<Args...> format, Args&&... args) const {
    TESSERA_REQUIRE(ok, "{}, line {}: {}", path_, line_,
                    fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  const std::string& path_;
  int line_;
  const std::map<std::string, size_t>& columns_;
  const std::vector<std::string>& fields_;
};

constexpr double kNeeded = std::numeric_limits<double>::quiet_NaN();

void read_sizes(const Record& record, Run& run) {
  run.params = 1e9 * record.number("params_b", kNeeded, 1e-6);
  run.layers = record.whole("layers", kNeeded);
  run.hidden = record.whole("hidden", kNeeded);
  run.heads = record.whole("heads", kNeeded);
  run.kv_heads = record.whole("kv_heads", static_cast<double>(run.heads));
  run.ffn = record.whole("ffn", 4.0 * static_cast<double>(run.hidden));
  run.seq = record.whole("seq", kNeeded);
  run.vocab = record.whole("vocab", 51200);  // of Megatron-LM's GPT
  run.global_batch = record.whole("global_batch", kNeeded);
  run.micro_batch = record.text("micro_batch").empty() ? 0 : record.whole("micro_batch", kNeeded);
  run.gpus = record.whole("gpus", kNeeded);
  run.tp = record.whole("tp", 1);
  run.pp = record.whole("pp", 1);
  run.interleave = record.text("interleave").empty() ? 0 : record.whole("interleave", kNeeded);
  run.cp = record.whole("cp", 1);
  const double rest = static_cast<double>(run.gpus) / static_cast<double>(run.tp * run.pp * run.cp);
  run.dp = record.whole("dp", rest);
  run.sp = record.number("sp", 0, 0) != 0;
  run.head_dim = record.text("head_dim").empty() ? run.hidden / std::max<int64_t>(1, run.heads)
                                                 : record.whole("head_dim", kNeeded);
  const double experts = record.number("experts", 0, 0);
  if (experts <= 1) return;
  run.experts = record.whole("experts", kNeeded);
  run.topk = record.whole("topk", kNeeded);
  run.ep = record.whole("ep", 1);
}

void check_sizes(const Record& record, const Run& r) {
  record.need(r.tp * r.pp * r.cp * r.dp == r.gpus, "tp {} x pp {} x cp {} x dp {} is not gpus {}",
              r.tp, r.pp, r.cp, r.dp, r.gpus);
  record.need(r.head_dim * r.heads == r.hidden || !record.text("head_dim").empty(),
              "hidden {} is no multiple of heads {}; a column head_dim may say how large a head is",
              r.hidden, r.heads);
  record.need(r.heads % r.kv_heads == 0, "heads {} is no multiple of kv_heads {}", r.heads,
              r.kv_heads);
  record.need(r.global_batch % r.dp == 0, "global_batch {} is no multiple of dp {}", r.global_batch,
              r.dp);
  record.need(r.micro_batch == 0 || (r.global_batch / r.dp) % r.micro_batch == 0,
              "global_batch {} over dp {} is no multiple of micro_batch {}", r.global_batch, r.dp,
              r.micro_batch);
  record.need(r.pp > 1 || r.interleave <= 1, "interleave {} is of pipelines, and pp is 1",
              r.interleave);
  record.need(r.topk <= std::max<int64_t>(1, r.experts), "topk {} is more than experts {}", r.topk,
              r.experts);
  record.need(std::max<int64_t>(1, r.experts) % r.ep == 0, "experts {} is no multiple of ep {}",
              r.experts, r.ep);
  record.need((r.tp * r.cp * r.dp) % r.ep == 0, "tp {} x cp {} x dp {} is no multiple of ep {}",
              r.tp, r.cp, r.dp, r.ep);
  record.need(r.layers >= r.pp && r.interleave <= (r.layers + r.pp - 1) / r.pp,
              "{} layers are too few for pp {} x interleave {}", r.layers, r.pp, r.interleave);
}

/// The number before " NeMo Container": 26.0201 for "26.02.01", 0 if there is none.
double release_of(const std::string& source) {
  const size_t end = lower_case(source).find(" nemo container");
  if (end == std::string::npos) return 0;
  size_t begin = end;
  while (begin > 0 && (std::isdigit(static_cast<unsigned char>(source[begin - 1])) != 0 ||
                       source[begin - 1] == '.'))
    --begin;
  std::string number = source.substr(begin, end - begin);
  const size_t second = number.find('.', number.find('.') + 1);
  if (second != std::string::npos) number.erase(second, 1);
  double release = 0;
  const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), release);
  return error == std::errc() && stop == number.data() + number.size() ? release : 0;
}

void read_words(const Record& record, Run& run) {
  run.system = lower_case(record.text("system"));
  run.model = record.text("model");
  run.gpu_kind = record.text("gpu_kind");
  run.recompute = lower_case(record.text("recompute"));
  run.dtype = lower_case(record.text("dtype"));
  run.source = record.text("source");
  if (run.recompute.empty()) run.recompute = "none";
  run.release = release_of(run.source);
  run.normed = lower_case(run.model).starts_with("qwen3");
  if (lower_case(run.model).starts_with("gpt oss") || lower_case(run.model).starts_with("gpt-oss"))
    run.biased = true, run.window = 128;
}

void check_words(const Record& record, const Run& run) {
  try {
    static_cast<void>(precision_of(run.dtype));
    static_cast<void>(recompute_of(run.recompute));
  } catch (const Error& e) {
    record.need(false, "{}", e.what());
  }
}

/// FLOPs of a step as SC'21 counts them: recomputed layers run their forward pass twice.
double hardware_flops(const Run& r) {
  const auto s = static_cast<double>(r.seq), h = static_cast<double>(r.hidden),
             l = static_cast<double>(r.layers), v = static_cast<double>(r.vocab);
  return 96 * static_cast<double>(r.global_batch) * s * l * h * h *
         (1 + s / (6 * h) + v / (16 * l * h));
}

void read_time(const Record& record, Run& run) {
  const std::string printed = lower_case(record.text("iter_s"));
  run.ran_out = printed == "oom";
  if (run.ran_out) return;
  run.seconds = record.number("iter_s", 0, 0);
  const double tflops = record.number("tflops_per_gpu", 0, 0), mfu = record.number("mfu_pct", 0, 0);
  if (run.seconds == 0 && tflops > 0) {
    const bool counts_twice = run.source.find("recompute") != std::string::npos;
    const double flops = counts_twice ? hardware_flops(run) : model_flops(run);
    run.seconds = flops / (static_cast<double>(run.gpus) * tflops * 1e12);
  }
  if (run.seconds == 0 && mfu > 0) {
    const bool is_a100 = lower_case(run.gpu_kind).find("a100") != std::string::npos;
    const double peak = is_a100 ? 312e12 : 989.5e12;
    run.seconds = model_flops(run) / (static_cast<double>(run.gpus) * mfu / 100 * peak);
  }
}

}  // namespace

double model_flops(const Run& r) {
  const double tokens = static_cast<double>(r.global_batch * r.seq);
  // A token passes topk of the experts, which have nearly all of a mixture's parameters that are
  // not attention's.
  double params = r.params;
  if (r.experts > 0) {
    const auto h = static_cast<double>(r.hidden), layers = static_cast<double>(r.layers);
    const double heads = static_cast<double>((2 * r.heads + 2 * r.kv_heads) * r.head_dim);
    const double dense = h * (layers * heads + 2 * static_cast<double>(r.vocab)),
                 own = std::max(0.0, params - dense);
    params -= own * (1 - static_cast<double>(r.topk) / static_cast<double>(r.experts));
  }
  const double width = static_cast<double>(r.heads * r.head_dim);
  return tokens * (6 * params + 12.0 * width * static_cast<double>(r.layers * r.seq));
}

std::vector<Run> read_runs(const std::string& path) {
  auto all = records(path);
  TESSERA_REQUIRE(!all.empty(), "{}: no header; the columns are {}", path,
                  fmt::join(kColumns, ","));
  std::map<std::string, size_t> columns;
  for (size_t c = 0; c < all[0].second.size(); ++c) columns[all[0].second[c]] = c;
  for (const std::string& name : kColumns)
    TESSERA_REQUIRE(columns.count(name) > 0, "{}: column '{}' is missing from the header", path,
                    name);
  std::vector<Run> runs;
  for (size_t i = 1; i < all.size(); ++i) {
    Run& run = runs.emplace_back();
    run.line = all[i].first;
    try {
      const Record record(path, all[i].first, columns, all[i].second);
      read_words(record, run);
      check_words(record, run);
      read_sizes(record, run);
      check_sizes(record, run);
      read_time(record, run);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::usage) throw;
      run.failure = e.what();
    }
  }
  TESSERA_REQUIRE(!runs.empty(), "{}: no runs below the header", path);
  return runs;
}

}  // namespace tessera::runs
