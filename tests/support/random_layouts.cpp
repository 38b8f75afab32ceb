// Random layout strings.
#include <algorithm>
#include <set>

#include "base/fail.h"
#include "support/random_graphs.h"

namespace tessera::test {

namespace {

class LayoutDraw {
 public:
  LayoutDraw(const Graph& graph, const std::string& mesh, std::mt19937_64& random)
      : graph_(graph), axes_(Mesh::parse(mesh).names()), random_(random) {
    std::set<std::string> names;
    for (const Value& v : graph.values()) {
      for (const Dim& d : v.shape) names.insert(d.name);
    }
    dims_.assign(names.begin(), names.end());
  }

  std::string run() {
    global_rules();
    if (!graph_.stored().empty()) {
      for (const char* purpose : {"@params", "@grads", "@state"}) {
        if (chance(3)) purpose_rule(purpose);
      }
    }
    if (chance(4)) scoped_rule();
    return text_;
  }

 private:
  bool chance(uint64_t one_in) { return random_() % one_in == 0; }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[random_() % from.size()];
  }
  void add(const std::string& clause) { text_ += (text_.empty() ? "" : ";") + clause; }

  void global_rules() {
    std::map<std::string, std::vector<std::string>> axes_of;
    for (const std::string& axis : axes_) {
      const int claims = chance(6) ? 0 : chance(4) ? 2 : 1;
      for (int k = 0; k < claims; ++k) {
        auto& list = axes_of[pick(dims_)];
        if (std::find(list.begin(), list.end(), axis) == list.end())
          list.insert(list.begin() + long(random_() % (list.size() + 1)), axis);
      }
    }
    for (const auto& [dim, axes] : axes_of) add(fmt::format("{}:{}", dim, fmt::join(axes, "+")));
  }

  void purpose_rule(const std::string& purpose) {
    const Stored& stored = pick(graph_.stored());
    const Shape& shape = graph_.value(stored.value).shape;
    if (shape.rank() == 0) return;
    add(fmt::format("{} {}{}{}", purpose, shape[static_cast<int>(random_() % shape.rank())].name,
                    chance(4) ? "=" : ":", pick(axes_)));
  }

  void scoped_rule() {
    const Value& value = graph_.values()[random_() % graph_.values().size()];
    if (value.shape.rank() == 0) return;
    const std::string dim = value.shape[static_cast<int>(random_() % value.shape.rank())].name;
    add(fmt::format("@/{}/ {}:{}", value.name, dim, chance(4) ? "-" : pick(axes_)));
  }

  const Graph& graph_;
  std::vector<std::string> axes_, dims_;
  std::mt19937_64& random_;
  std::string text_;
};

}  // namespace

std::string draw_layout(const Graph& graph, const std::string& mesh, std::mt19937_64& random) {
  return LayoutDraw(graph, mesh, random).run();
}

}  // namespace tessera::test
