#include "io/tensor_map.h"

#include <algorithm>
#include <charconv>

#include "base/fail.h"

namespace tessera {

namespace {

constexpr std::string_view kLayer = "{layer}", kExpert = "{expert}";

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(at, begin);
    std::string part = text.substr(begin, end - begin);
    part.erase(0, part.find_first_not_of(' '));
    parts.push_back(std::move(part));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

/// A fault of a family's table, at a line of its file or, if line is 0, of the whole.
[[noreturn]] void refuse(const Family& family, int line, const std::string& fault) {
  if (family.file.empty())
    fail(ErrorKind::internal, "the table of '{}': {}", family.model_type, fault);
  fail(ErrorKind::io, "[model] '{}': {}{}", family.file,
       line > 0 ? fmt::format("line {}: ", line) : "", fault);
}

/// -1 if `text` is not a number.
int64_t number(std::string_view text) {
  int64_t value = -1;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  return read.ptr == text.data() + text.size() ? value : -1;
}

/// "d_head", "1/3", "d_plain+64" or "128+d_rotary": see WeightRule.
PartDim part_dim(const std::string& factor, const Shape& parameter, const Family& family,
                 int line) {
  if (const size_t slash = factor.find('/'); slash != std::string::npos) {
    const PartDim one{"", number(factor.substr(slash + 1)), number(factor.substr(0, slash)), 1};
    if (one.first < 0 || one.first >= one.size)
      refuse(family, line,
             fmt::format("'{}' is no place in a dim; '0/3' is the first of three", factor));
    return one;
  }
  PartDim named;
  for (const std::string& term : split(factor, '+')) {
    if (const int64_t places = number(term); places >= 0) {
      (named.name.empty() ? named.first : named.size) += places;
      continue;
    }
    if (!named.name.empty())
      refuse(
          family, line,
          fmt::format("'{}' adds up two dims; beside a dim there are numbers of places", factor));
    named.name = term;
    named.count = parameter.has(term) ? parameter.dim(term).size : 1;
    named.size = named.first + named.count;
  }
  return named;
}

/// The part that `rule` describes, and the sizes of its tensor. `place`: of the layer in its loop.
TensorPart part_of(const Family& family, const WeightRule& rule, const std::string& parameter,
                   const Shape& shape, int64_t place, int64_t expert, std::vector<int64_t>& sizes) {
  TensorPart part{parameter, {}, {}};
  if (shape.has("layers")) part.at.emplace_back("layers", place);
  if (rule.tensor.find(kExpert) != std::string::npos) part.at.emplace_back("experts", expert);
  sizes.clear();
  for (const std::string& dim : split(rule.dims, ',')) {
    sizes.push_back(1);
    for (const std::string& factor : split(dim, '*')) {
      part.dims.push_back(part_dim(factor, shape, family, rule.line));
      sizes.back() *= part.dims.back().size;
    }
  }
  for (const Dim& d : shape) {
    const auto is_it = [&](const PartDim& p) { return p.name == d.name; };
    const auto is_at = [&](const auto& index) { return index.first == d.name; };
    if (std::none_of(part.at.begin(), part.at.end(), is_at) &&
        std::none_of(part.dims.begin(), part.dims.end(), is_it))
      refuse(family, rule.line,
             fmt::format("the dims \"{}\" of '{}' lack '{}' of its parameter '{}' {}", rule.dims,
                         rule.tensor, d.name, parameter, shape.to_string()));
  }
  return part;
}

std::string with(std::string name, std::string_view place, int64_t index) {
  if (const size_t at = name.find(place); at != std::string::npos)
    name.replace(at, place.size(), fmt::format("{}", index));
  return name;
}

class Mapper {
 public:
  Mapper(const Family& family, const nn::TransformerOptions& o) : family_(family), o_(o) {}

  TensorMap map() {
    Graph graph;
    nn::transformer(graph, o_);
    for (const Tensor& p : graph.parameters()) map_.parameters.emplace(p.name(), p.shape());
    for (const WeightRule& rule : family_.weights(o_)) {
      const auto has = [&](std::string_view place) {
        return rule.tensor.find(place) != std::string::npos;
      };
      require_places(rule);
      if (!has(kLayer)) {
        add(rule, {}, 0, 0);
        continue;
      }
      nn::TransformerOptions o = o_;
      if (rule.parameter.starts_with("encoder.")) o.layers = o_.encoder_layers;
      for (const nn::LayerRun& run : nn::layer_runs(o)) {
        if (rule.span && o.kind_of(run.first) != *rule.span) continue;
        const int64_t experts = has(kExpert) ? o.mlp_of(run.first).experts : 1;
        for (int64_t i = 0; i < run.count; ++i) {
          for (int64_t e = 0; e < experts; ++e) add(rule, run, i, e);
        }
      }
    }
    for (const auto& [name, shape] : map_.parameters) {
      if (covered_[name] == shape.elements()) continue;
      refuse(family_, 0,
             fmt::format("its tensors have {} of the {} elements of the parameter '{}' {}; each is "
                         "in one tensor{}",
                         covered_[name], shape.elements(), name.substr(o_.name.size() + 1),
                         shape.to_string(),
                         left_out_.empty() ? "" : "; this model lacks " + left_out_));
    }
    // A copy is compared with what it is a copy of, which is read before it.
    std::stable_partition(map_.tensors.begin(), map_.tensors.end(),
                          [](const MappedTensor& t) { return !t.is_copy; });
    return std::move(map_);
  }

 private:
  void require_places(const WeightRule& rule) const {
    const std::string& name = rule.tensor;
    for (size_t at = 0; (at = name.find('{', at)) != std::string::npos; ++at) {
      const std::string place = name.substr(at, name.find('}', at) - at + 1);
      if (place != kLayer && place != kExpert)
        refuse(family_, rule.line,
               fmt::format("tensor '{}' has '{}'; a name may have {} and {}", name, place, kLayer,
                           kExpert));
    }
  }

  /// `place`: that of the layer in the run.
  void add(const WeightRule& rule, const nn::LayerRun& run, int64_t place, int64_t expert) {
    constexpr std::string_view kBlock = "block";
    const int64_t layer = run.first + place;
    std::string parameter = o_.name + "." + rule.parameter;
    for (const char* scope : {".", ".encoder."}) {
      const std::string outside = o_.name + scope;
      if (parameter.starts_with(outside + std::string(kBlock) + "."))
        parameter.replace(outside.size(), kBlock.size(), run.block);
    }
    auto found = map_.parameters.find(parameter);
    const bool is_other = found == map_.parameters.end() && rule.otherwise;
    if (is_other) {
      if (layer + expert == 0)
        left_out_ += fmt::format("{}'{}' (line {})", left_out_.empty() ? "" : ", ", rule.parameter,
                                 rule.line);
      if (rule.otherwise->empty()) return;
      parameter = o_.name + "." + *rule.otherwise;
      found = map_.parameters.find(parameter);
    }
    if (found == map_.parameters.end())
      refuse(family_, rule.line, fmt::format("the model has no parameter '{}'", parameter));
    const bool is_copy = rule.is_copy || is_other;
    MappedTensor tensor{with(with(rule.tensor, kLayer, layer), kExpert, expert), {}, {}, is_copy};
    tensor.parts.push_back(
        part_of(family_, rule, parameter, found->second, place, expert, tensor.sizes));
    if (!is_copy) {
      int64_t elements = 1;
      for (const PartDim& d : tensor.parts[0].dims) elements *= d.count;
      covered_[parameter] += elements;
    }
    const auto [at, is_new] = index_.emplace(tensor.name, map_.tensors.size());
    if (is_new) {
      map_.tensors.push_back(std::move(tensor));
    } else {
      map_.tensors[at->second].parts.push_back(std::move(tensor.parts[0]));
    }
  }

  const Family& family_;
  const nn::TransformerOptions& o_;
  TensorMap map_;
  std::map<std::string, size_t> index_;
  std::map<std::string, int64_t> covered_;
  std::string left_out_;  ///< parameters of rules that this model lacks, with their lines
};

/// What a part and a slice have in common along one dim of the part.
struct CommonDim {
  int64_t from, count;  ///< in the part
  int64_t file_stride, to_stride;
};

}  // namespace

TensorMap tensor_map(const Family& family, const nn::TransformerOptions& options) {
  return Mapper(family, options).map();
}

void visit_runs(const TensorPart& part, const Slice& slice,
                const std::function<void(int64_t, const int64_t*, int64_t)>& visit) {
  constexpr int64_t kMost = 1 << 18;  // elements of a run, but for a longer last dim
  const auto place = [&](const std::string& name) {
    return std::find(slice.dims.begin(), slice.dims.end(), name) - slice.dims.begin();
  };
  int64_t base = 0;
  for (const auto& [name, index] : part.at) {
    const auto d = static_cast<size_t>(place(name));
    const int64_t at = index - slice.offset[d];
    if (at < 0 || at >= slice.valid[d]) return;
    base += at * slice.strides[d];
  }
  std::vector<CommonDim> dims;
  int64_t stride = 1;
  for (size_t i = part.dims.size(); i-- > 0;) {
    const PartDim& p = part.dims[i];
    CommonDim c{p.first, 1, stride, 0};
    const auto d = static_cast<size_t>(place(p.name));
    if (d < slice.dims.size())
      c = {p.first + slice.offset[d], slice.valid[d], stride, slice.strides[d]};
    if (c.count <= 0) return;
    dims.insert(dims.begin(), c);
    stride *= p.size;
  }
  // Dims [inner, rank) are one run in the file.
  const size_t rank = dims.size();
  size_t inner = rank;
  int64_t run = 1;
  while (inner > 0 && (inner == rank || run * dims[inner - 1].count <= kMost)) {
    --inner;
    run *= dims[inner].count;
    if (dims[inner].count != part.dims[inner].size) break;
  }
  std::vector<int64_t> to(static_cast<size_t>(run)), index(rank, 0);
  std::vector<int64_t> inside(static_cast<size_t>(run));
  for (int64_t e = 0; e < run; ++e) {
    int64_t rest = e, at = 0;
    for (size_t d = rank; d-- > inner;) {
      at += rest % dims[d].count * dims[d].to_stride;
      rest /= dims[d].count;
    }
    inside[static_cast<size_t>(e)] = at;
  }
  for (;;) {
    int64_t offset = 0, first = base;
    for (size_t d = 0; d < rank; ++d) {
      offset += (dims[d].from + index[d]) * dims[d].file_stride;
      first += index[d] * dims[d].to_stride;
    }
    for (size_t e = 0; e < to.size(); ++e) to[e] = first + inside[e];
    visit(offset, to.data(), run);
    size_t d = inner;
    while (d > 0 && ++index[d - 1] == dims[d - 1].count) index[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace tessera
