#include "tessera/mesh.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/fail.h"

namespace tessera {

namespace {
constexpr const char* kBlanks = " \t\r\n";

void require_nameable(const std::string& name) {
  TESSERA_REQUIRE(!name.empty(), "a mesh axis has an empty name");
  TESSERA_REQUIRE(name != "auto" && name != "-",
                  "mesh axis '{}': in a layout that stands for {}; give the axis another name",
                  name, name == "-" ? "no axis" : "the planner's choice");
  const size_t at = std::min(name.find_first_of("+*@#,.;:= \t\r\n\v\f"), name.size());
  TESSERA_REQUIRE(
      at == name.size(),
      "mesh axis '{}': no layout can name it, for '{}' has a meaning of its own there; take "
      "letters, digits and '_'",
      name, name.substr(at, 1));
}
}  // namespace

Mesh::Mesh(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {
  int64_t ranks = 1;
  for (size_t i = 0; i < axes_.size(); ++i) {
    require_nameable(axes_[i].name);
    TESSERA_REQUIRE(axes_[i].size >= 1, "mesh axis '{}' has size {}; an axis has at least 1 rank",
                    axes_[i].name, axes_[i].size);
    ranks *= axes_[i].size;
    TESSERA_REQUIRE(ranks <= std::numeric_limits<int>::max(),
                    "mesh '{}' has too many ranks: at most {} can be counted", to_string(),
                    std::numeric_limits<int>::max());
    for (size_t j = 0; j < i; ++j) {
      TESSERA_REQUIRE(axes_[i].name != axes_[j].name,
                      "mesh axis '{}' is named twice; axes have distinct names", axes_[i].name);
    }
  }
}

namespace {
/// Without the blanks around colons.
std::string joined_pairs(const std::string& text) {
  std::string result;
  for (size_t pos = 0; pos < text.size(); ++pos) {
    if (text[pos] != ':') {
      result += text[pos];
      continue;
    }
    result.resize(result.find_last_not_of(kBlanks) + 1);  // none: npos + 1 is 0
    result += ':';
    pos = std::min(text.find_first_not_of(kBlanks, pos + 1), text.size()) - 1;
  }
  return result;
}
}  // namespace

Mesh Mesh::parse(const std::string& whole) {
  std::vector<MeshAxis> axes;
  size_t pos = 0;
  const std::string text = joined_pairs(whole), separators = std::string(";,.") + kBlanks;
  while ((pos = text.find_first_not_of(separators, pos)) != std::string::npos) {
    const size_t end = std::min(text.find_first_of(separators, pos), text.size());
    const std::string item = text.substr(pos, end - pos);
    pos = end;
    const size_t colon = item.find(':');
    TESSERA_REQUIRE(colon != std::string::npos && colon > 0,
                    "mesh '{}': '{}' is not 'axis:size'; write for example \"data:2;model:4\"",
                    text, item);
    MeshAxis axis{item.substr(0, colon), 0};
    std::string number = item.substr(colon + 1);
    if (size_t at = number.find('@'); at != std::string::npos) {
      axis.link = number.substr(at + 1);
      number.resize(at);
    }
    auto [end_of_number, error] =
        std::from_chars(number.data(), number.data() + number.size(), axis.size);
    TESSERA_REQUIRE(
        error != std::errc::result_out_of_range,
        "mesh '{}': the size of axis '{}' is '{}', which is too {}; an axis has 1 to {} ranks",
        text, axis.name, number, number[0] == '-' ? "small" : "large",
        std::numeric_limits<int>::max());
    TESSERA_REQUIRE(error == std::errc() && end_of_number == number.data() + number.size(),
                    "mesh '{}': the size of axis '{}' is '{}', which is not a whole number", text,
                    axis.name, number);
    axes.push_back(std::move(axis));
  }
  return Mesh(std::move(axes));
}

int Mesh::size() const {
  int n = 1;
  for (const MeshAxis& axis : axes_) n *= axis.size;
  return n;
}

int Mesh::find(const std::string& name) const {
  for (int i = 0; i < rank(); ++i) {
    if (axes_[i].name == name) return i;
  }
  return -1;
}

std::vector<std::string> Mesh::names() const {
  std::vector<std::string> result;
  for (const MeshAxis& axis : axes_) result.push_back(axis.name);
  return result;
}

std::vector<int> Mesh::coordinates(int rank) const {
  std::vector<int> result(axes_.size());
  for (int i = this->rank() - 1; i >= 0; --i) {
    result[i] = rank % axes_[i].size;
    rank /= axes_[i].size;
  }
  return result;
}

int Mesh::rank_of(std::span<const int> coordinates) const {
  int rank = 0;
  for (int i = 0; i < this->rank(); ++i) rank = rank * axes_[i].size + coordinates[i];
  return rank;
}

std::string Mesh::to_string() const {
  std::string text;
  for (const MeshAxis& axis : axes_) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : ";", axis.name, axis.size);
    if (!axis.link.empty()) text += "@" + axis.link;
  }
  return text;
}

bool TensorLayout::uses(int axis) const {
  for (const auto& axes : dims) {
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) return true;
  }
  return std::find(partial.begin(), partial.end(), axis) != partial.end();
}

std::string TensorLayout::to_string(const std::vector<std::string>& dim_names,
                                    const Mesh& mesh) const {
  std::string text = "[";
  for (size_t d = 0; d < dims.size(); ++d) {
    text += (d ? ", " : "") + dim_names[d];
    for (size_t i = 0; i < dims[d].size(); ++i)
      text += (i ? "+" : "@") + mesh.axes()[dims[d][i]].name;
    if (dirty >> d & 1) text += "~";
  }
  text += "]";
  if (!partial.empty()) {
    text += fmt::format(" partial({}) over", tessera::to_string(combiner));
    for (int axis : partial) text += " " + mesh.axes()[axis].name;
  }
  return text;
}

}  // namespace tessera
