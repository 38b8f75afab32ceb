// What a recompute policy keeps, from the words of the frameworks.
#include <algorithm>
#include <charconv>

#include "base/fail.h"
#include "benchmarks/published_runs/runs.h"

namespace tessera::runs {

namespace {

/// Megatron-Core's modules (--recompute-modules), and the scopes of our blocks that they are. Of
/// some it discards the results as well (CheckpointWithoutOutput). Latent attention's
/// up-projections make queries, keys and values.
struct Module {
  const char* name;
  const char* scope;
  bool is_discarded;
};
constexpr Module kModules[] = {
    {"core_attn", "core", false},
    {"layernorm", "layernorm", true},
    {"mla_up_proj", "projections", true},
    {"mlp", "mlp", false},
    {"moe", "mlp", false},
    {"moe_act", "activation", true},
    {"shared_experts", "mlp_shared", false},
};

/// The words of a list: "[core_attn, mlp]", "core_attn+mlp".
std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> result(1);
  for (const char c : text) {
    const bool is_word = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
    if (is_word) result.back() += c == '-' ? '_' : c;
    if (!is_word && !result.back().empty()) result.emplace_back();
  }
  if (result.back().empty()) result.pop_back();
  return result;
}

/// The number in "full:5", or 0.
int64_t number_after(const std::string& text, const std::string& word) {
  if (!text.starts_with(word) || text.size() < word.size() + 2) return 0;
  const char* begin = text.data() + word.size() + 1;
  const char* end = text.data() + text.size();
  int64_t number = 0;
  const auto [stop, error] = std::from_chars(begin, end, number);
  return error == std::errc() && stop == end ? std::max<int64_t>(number, 0) : 0;
}

}  // namespace

Recompute recompute_of(const std::string& policy) {
  Recompute result;
  if (policy.empty() || policy == "none") return result;
  if (policy == "selective") {
    result.kind = Recompute::Kind::selective;
    return result;
  }
  if (policy == "selective-per-op" || policy == "selective-op") {
    result.kind = Recompute::Kind::per_op;
    return result;
  }
  result.layers = number_after(policy, "full");
  result.every = number_after(policy, "selective");
  if (policy == "full" || result.layers > 0 || result.every > 0) {
    result.kind = Recompute::Kind::full;
    return result;
  }
  result.kind = Recompute::Kind::modules;
  std::vector<std::string> known;
  for (const Module& module : kModules) known.push_back(module.name);
  for (const std::string& word : words(policy)) {
    if (word == "selective") continue;  // "selective: core_attn, mlp"
    const auto* module = std::find_if(std::begin(kModules), std::end(kModules),
                                      [&](const Module& m) { return word == m.name; });
    TESSERA_REQUIRE(
        module != std::end(kModules),
        "recompute '{}' is none of none, full, full:LAYERS, selective, selective:EVERY, "
        "selective-per-op, or a list of {}{}",
        policy, fmt::join(known, ", "), word == policy ? "" : "; unknown is '" + word + "'");
    (module->is_discarded ? result.discarded : result.scopes).push_back(module->scope);
  }
  TESSERA_REQUIRE(!result.scopes.empty() || !result.discarded.empty(),
                  "recompute '{}' names nothing", policy);
  return result;
}

}  // namespace tessera::runs
