// A rule gives an axis a role with a weight; of several the heaviest counts. Roles of an axis that
// is cut are shared among its atoms: heads of queries are heads of keys times heads_per_key. Then
// names are given in the order in which atoms appear. One role with two sizes is numbered.
#include "pytorch/names.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/fail.h"
#include "tessera/mesh.h"

namespace tessera::pytorch {

namespace {

constexpr int kClaim = 1000, kInput = 50, kHidden = 40, kClasses = 45, kLayer = 20;

struct Candidate {
  std::string name, key;  ///< atoms with equal keys and sizes are one
  int weight = 0;
  std::string place;  ///< of a claim
};

std::string lower_name(const std::string& text) {
  std::string name;
  for (const char x : text)
    name += std::isalnum(static_cast<unsigned char>(x)) ? static_cast<char>(std::tolower(x)) : '_';
  return name.empty() || std::isdigit(static_cast<unsigned char>(name[0])) ? "dim_" + name : name;
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\n"), end = text.find_last_not_of(" \t\n");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

std::vector<std::string> parts_of(const std::string& text, const char* at) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find_first_of(at, begin), text.size());
    const std::string part = trimmed(text.substr(begin, end - begin));
    if (!part.empty()) parts.push_back(part);
    begin = end + 1;
  }
  return parts;
}

class Namer {
 public:
  explicit Namer(Import& import) : import_(import), atoms_(import.atoms()) {}

  void run(const std::string& claims) {
    for (const RoleOf& role : import_.roles()) {
      const std::string key =
          role.weight > kLayer ? role.name : role.name + " " + pattern_of(role.module);
      share(role.axis, {role.name, key, role.weight, ""});
    }
    name_inputs();
    name_outputs();
    name_hidden();
    for (const std::string& clause : parts_of(claims, ";\n")) claim(clause);
    give_names();
  }

 private:
  void offer(int atom, const Candidate& candidate) {
    Candidate& best = best_[atom];
    if (best.weight == kClaim && candidate.weight == kClaim && best.name != candidate.name)
      fail(ErrorKind::usage,
           "[pytorch] '{}': dims of {} call one dim '{}' that dims of {} call '{}'",
           import_.program().path, candidate.place, candidate.name, best.place, best.name);
    if (candidate.weight > best.weight) best = candidate;
  }

  /// The atoms of an axis with one role.
  void share(const Axis& axis, const Candidate& role) {
    const Axis uses = atoms_.expand(axis);
    if (uses.size() == 1) return offer(uses[0].atom, role);
    if (role.weight <= kLayer) return;
    for (size_t i = 0; i < uses.size(); ++i) {
      Candidate part = role;
      part.weight -= 1;
      std::string end;
      if (role.name == "heads" && uses.size() == 2) {
        end = i == 0 ? "" : "_per_key";
      } else if (uses.size() == 2) {
        end = i == 0 ? "_blocks" : "_block";
      } else {
        end = fmt::format("_{}", i);
      }
      part.name += end, part.key += end;
      offer(uses[i].atom, part);
    }
  }

  void name_inputs() {
    std::string first_length;
    for (const InputSpec& input : import_.program().inputs) {
      if (input.kind != InputSpec::Kind::user) continue;
      const AxisList& axes = import_.values().at(input.value).axes;
      const TensorMeta& meta = import_.program().graph.tensors.at(input.value);
      const bool floating = meta.type != ScalarType::bool_ && is_floating(dtype_of(meta.type));
      std::vector<std::string> names = {"batch"};
      if (floating && axes.size() == 4) names = {"batch", "channels", "height", "width"};
      if (floating && axes.size() == 5) names = {"batch", "channels", "depth", "height", "width"};
      if (floating && axes.size() == 3) names = {"batch", "length", "features"};
      if (floating && axes.size() == 2) names = {"batch", "features"};
      if (!floating) names.push_back("length");
      for (size_t i = 0; i < axes.size() && i < names.size(); ++i) {
        const Axis uses = atoms_.expand(axes[i]);
        if (uses.size() != 1) continue;
        std::string name = names[i];
        if (name != "batch" && best_.count(uses[0].atom) == 0 && taken_.count(name) != 0)
          name = lower_name(short_name(input.name)) + "_" + name;  // another input's own
        taken_.insert(name);
        offer(uses[0].atom, {name, name, kInput, ""});
      }
    }
  }

  /// "decoder" of "decoder_input_ids".
  static std::string short_name(std::string name) {
    for (const char* end : {"_ids", "_input", "_tokens"}) {
      const size_t at = name.rfind(end);
      if (at != std::string::npos && at > 0 && at + std::string(end).size() == name.size())
        name.erase(at);
    }
    return name;
  }

  void name_outputs() {
    bool reads_tokens = false;
    for (const RoleOf& role : import_.roles()) reads_tokens = reads_tokens || role.name == "vocab";
    for (const std::string& output : import_.program().outputs) {
      if (output.empty()) continue;
      const AxisList& axes = import_.values().at(output).axes;
      if (axes.size() < 2) continue;
      const Axis uses = atoms_.expand(axes.back());
      bool projected = false, read = false;
      for (const auto& [in, out] : import_.projections()) {
        projected = projected || atoms_.expand(out) == uses;
        read = read || atoms_.expand(in) == uses;
      }
      const std::string name = reads_tokens && axes.size() > 2 ? "vocab" : "classes";
      if (uses.size() == 1 && projected && !read && best_[uses[0].atom].weight <= kLayer)
        offer(uses[0].atom, {name, name, kClasses, ""});
    }
  }

  /// ff: from d_model and back.
  void name_hidden() {
    std::set<int> widths;
    for (const auto& [atom, best] : best_)
      if (best.name == "d_model") widths.insert(atom);
    std::map<int, std::set<int>> to;
    for (const auto& [in, out] : import_.projections()) {
      const Axis a = atoms_.expand(in), b = atoms_.expand(out);
      if (a.size() == 1 && !b.empty())
        to[a[0].atom].insert(b.back().atom);  // of gate and up as one, the inner
    }
    for (const int width : widths)
      for (const int hidden : to[width])
        if (widths.count(hidden) == 0 && to[hidden].count(width) != 0)
          offer(hidden, {"ff", "ff", kHidden, ""});
  }

  void claim(const std::string& clause) {
    const size_t colon = clause.find(':');
    TESSERA_REQUIRE(
        colon != std::string::npos,
        "[pytorch] dims '{}' are no 'value: names'; write for example 'tokens: batch length'",
        clause);
    const std::string glob = trimmed(clause.substr(0, colon));
    const std::vector<std::string> names = parts_of(clause.substr(colon + 1), ", \t");
    std::vector<std::string> known;
    int matched = 0;
    for (const InputSpec& input : import_.program().inputs) {
      known.push_back(input.name);
      if (!glob_match(glob, input.name) && !(glob_match(glob, input.part_of))) continue;
      ++matched;
      claim_axes(input.name, import_.values().at(input.value).axes, names);
    }
    TESSERA_REQUIRE(matched > 0,
                    "[pytorch] dims '{}': the program has no input or parameter '{}'{}", clause,
                    glob, suggestion(glob, known));
  }

  void claim_axes(const std::string& tensor, const AxisList& axes,
                  const std::vector<std::string>& names) {
    const std::string place = fmt::format("'{}'", tensor);
    std::vector<int64_t> sizes;
    for (const Axis& axis : axes) sizes.push_back(atoms_.size(axis));
    TESSERA_REQUIRE(axes.size() == names.size(),
                    "[pytorch] dims of {} name {} axes, and it has {}: [{}]", place, names.size(),
                    axes.size(), fmt::join(sizes, ", "));
    for (size_t i = 0; i < axes.size(); ++i) {
      const std::vector<std::string> parts = parts_of(names[i], "*");
      const Axis uses = atoms_.expand(axes[i]);
      if (names[i] == "_" || uses.empty()) continue;
      TESSERA_REQUIRE(
          parts.size() == uses.size(),
          "[pytorch] dims of {}: '{}' names {} dims, and axis {} of {} elements consists of {}; "
          "write a name for each, as in heads*d_head",
          place, names[i], parts.size(), i, sizes[i], uses.size());
      for (size_t k = 0; k < parts.size(); ++k) {
        const int64_t size = atoms_.size(uses[k].atom);
        const auto before = claimed_.emplace(parts[k], std::pair{size, place});
        TESSERA_REQUIRE(before.first->second.first == size,
                        "[pytorch] dims of {} call {} elements '{}', and dims of {} {} elements",
                        place, size, parts[k], before.first->second.second,
                        before.first->second.first);
        offer(uses[k].atom, {parts[k], "claim " + parts[k], kClaim, place});
      }
    }
  }

  /// In order of appearance: inputs, then values.
  void give_names() {
    for (const InputSpec& input : import_.program().inputs)
      if (input.kind == InputSpec::Kind::user) visit(import_.values().at(input.value).axes, "");
    for (const InputSpec& input : import_.program().inputs)
      if (input.kind != InputSpec::Kind::user)
        visit(import_.values().at(input.value).axes,
              input.part_of.empty() ? input.name : input.part_of);
    for (const Node& node : import_.program().graph.nodes)
      for (const std::string& output : node.outputs)
        if (const auto found = import_.values().find(output); found != import_.values().end())
          visit(found->second.axes, "");
  }

  void visit(const AxisList& axes, const std::string& parameter) {
    for (size_t i = 0; i < axes.size(); ++i)
      for (const Use& use : atoms_.expand(axes[i])) give(use.atom, parameter, i);
  }

  void give(int atom, const std::string& parameter, size_t axis) {
    if (named_.count(atom) != 0) return;
    Candidate best = best_[atom];
    if (best.name.empty()) {
      const std::string base =
          parameter.empty() ? "dim" : of_table(lower_name(last_module(parameter)));
      best = {base,
              parameter.empty() ? "" : fmt::format("{} {} {}", base, pattern_of(parameter), axis),
              1, ""};
    }
    best.name = lower_name(best.name);
    const int64_t size = atoms_.size(atom);
    if (!best.key.empty()) {
      const auto known = by_key_.find({best.key, size});
      if (known != by_key_.end()) {
        atoms_.join(known->second, atom);
        named_.insert(atom);
        const std::string name = name_of_[known->second];
        for (const int each : {atom, known->second})
          import_.name(each, name), name_of_[each] = name;
        return;
      }
    }
    std::string name = best.name;
    for (int n = 2; !used_.insert(name).second; ++n) name = fmt::format("{}_{}", best.name, n);
    import_.name(atom, name);
    name_of_[atom] = name;
    named_.insert(atom);
    if (!best.key.empty()) by_key_[{best.key, size}] = atom;
  }

  /// Tables of positions and of kinds of tokens have the names of Tessera's own models.
  static std::string of_table(const std::string& module) {
    for (const char* table :
         {"position_embeddings", "position_embedding", "pos_embed", "pos_embedding", "wpe"})
      if (module == table) return "positions";
    return module == "token_type_embeddings" ? "token_types" : module;
  }

  /// "up" of "b.0.up.weight".
  static std::string last_module(const std::string& parameter) {
    std::string name = parameter;
    for (const std::string& part : parts_of(parameter, "."))
      if (part != "weight" && part != "bias" && !std::isdigit(static_cast<unsigned char>(part[0])))
        name = part;
    return name;
  }

  Import& import_;
  Atoms& atoms_;
  std::map<int, Candidate> best_;
  std::set<std::string> taken_, used_ = {"memory_length"};
  std::map<std::string, std::pair<int64_t, std::string>> claimed_;
  std::map<std::pair<std::string, int64_t>, int> by_key_;
  std::map<int, std::string> name_of_;
  std::set<int> named_;
};

}  // namespace

std::string pattern_of(const std::string& module) {
  std::string pattern;
  bool digits = false;
  for (const char x : module) {
    const bool is_digit = x >= '0' && x <= '9';
    if (!is_digit || !digits) pattern += is_digit ? '*' : x;
    digits = is_digit;
  }
  return pattern;
}

void name_dims(Import& import, const std::string& claims) { Namer(import).run(claims); }

}  // namespace tessera::pytorch
