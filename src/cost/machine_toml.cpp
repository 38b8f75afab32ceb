// Machine profiles as TOML. An unknown key, or a value of the wrong type, is an error that names
// the table.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/fail.h"
#include "base/files.h"
#include "base/toml.h"
#include "base/toml_text.h"
#include "cost/machine_files.h"
#include "tessera/machine.h"

namespace tessera {

namespace {

constexpr int64_t kProfileFormat = 2;

/// A number as double. Large integers are rounded; toml++ would return nothing for them.
std::optional<double> number_of(const toml::node& node) {
  if (const auto whole = node.value_exact<int64_t>()) return static_cast<double>(*whole);
  return node.value_exact<double>();
}

/// One table of a profile. Values are taken out by key; keys left over are errors.
class ProfileReader {
 public:
  ProfileReader(const toml::table& table, std::string where)
      : table_(table), where_(std::move(where)) {}

  void take(const char* key, double& value, bool required = false) {
    const toml::node* node = find(key, required);
    if (node == nullptr) return;
    const auto number = number_of(*node);
    TESSERA_REQUIRE(number.has_value(), "{}: '{}' is not a number", where_, key);
    TESSERA_REQUIRE(std::isfinite(*number) && *number >= 0, "{}: '{}' is {}; it is at least 0",
                    where_, key, *number);
    TESSERA_REQUIRE(!required || *number > 0, "{}: '{}' is 0; it has to be more", where_, key);
    value = *number;
  }

  void take(const char* key, int64_t& value, bool required = false) {
    double number = static_cast<double>(value);
    take(key, number, required);
    constexpr double kMost = 1e18;
    TESSERA_REQUIRE(number <= kMost, "{}: '{}' is {}; it is at most {}", where_, key, number,
                    kMost);
    value = static_cast<int64_t>(number);
  }

  void take(const char* key, std::string& value, bool required = false) {
    const toml::node* node = find(key, required);
    if (node == nullptr) return;
    TESSERA_REQUIRE(node->is_string(), "{}: '{}' is not text", where_, key);
    value = *node->value<std::string>();
  }

  void take(const char* key, bool& value) {
    const toml::node* node = find(key, false);
    if (node == nullptr) return;
    TESSERA_REQUIRE(node->is_boolean(), "{}: '{}' is not true or false", where_, key);
    value = *node->value<bool>();
  }

  /// Takes [[x0, y0], [x1, y1], ...] with ascending x.
  void take(const char* key, std::vector<std::pair<double, double>>& points) {
    const toml::node* node = find(key, true);
    TESSERA_REQUIRE(node->is_array() && !node->as_array()->empty(),
                    "{}: '{}' is not a list of pairs of numbers", where_, key);
    for (const toml::node& item : *node->as_array()) {
      const toml::array* pair = item.as_array();
      TESSERA_REQUIRE(
          pair != nullptr && pair->size() == 2 && number_of((*pair)[0]) && number_of((*pair)[1]),
          "{}: '{}' is not a list of pairs of numbers", where_, key);
      points.emplace_back(*number_of((*pair)[0]), *number_of((*pair)[1]));
      TESSERA_REQUIRE(std::isfinite(points.back().first) && std::isfinite(points.back().second),
                      "{}: '{}' holds a number that is not finite", where_, key);
      TESSERA_REQUIRE(points.size() == 1 || points[points.size() - 2].first < points.back().first,
                      "{}: the first numbers of '{}' do not ascend at {}", where_, key,
                      points.back().first);
    }
  }

  void take(const char* key, std::vector<std::pair<std::string, double>>& named) {
    const toml::node* node = find(key, false);
    if (node == nullptr) return;
    TESSERA_REQUIRE(node->is_table(), "{}: '{}' is not a table", where_, key);
    for (const auto& [name, value] : *node->as_table()) {
      const auto number = number_of(value);
      TESSERA_REQUIRE(number && std::isfinite(*number), "{}: '{}.{}' is not a number", where_, key,
                      name.str());
      named.emplace_back(std::string(name.str()), *number);
    }
  }

  /// Calls take(table) for each table of an array of tables.
  template <class Take>
  void each(const char* key, const Take& take) {
    const toml::node* node = find(key, false);
    if (node == nullptr) return;
    TESSERA_REQUIRE(node->is_array_of_tables(), "{}: '{}' is not a list of tables [[{}]]", where_,
                    key, key);
    int number = 0;
    for (const toml::node& item : *node->as_array()) {
      ProfileReader reader(*item.as_table(), fmt::format("{}: [[{}]] {}", where_, key, ++number));
      take(reader);
      reader.finish();
    }
  }

  void finish() const {
    for (const auto& [key, value] : table_) {
      const std::string name(key.str());
      TESSERA_REQUIRE(std::find(known_.begin(), known_.end(), name) != known_.end(),
                      "{}: unknown key '{}'{}", where_, name, suggestion(name, known_));
    }
  }

 private:
  const toml::node* find(const char* key, bool required) {
    known_.push_back(key);
    const toml::node* node = table_.get(key);
    TESSERA_REQUIRE(node != nullptr || !required, "{}: '{}' is missing", where_, key);
    return node;
  }

  const toml::table& table_;
  std::string where_;
  std::vector<std::string> known_;
};

void read_compute(ProfileReader& top, Machine& m) {
  top.each("memory_rate", [&](ProfileReader& r) {
    MemoryRate& rate = m.memory_rates.emplace_back();
    r.take("up_to", rate.up_to);
    r.take("bandwidth", rate.bandwidth, true);
  });
  top.each("matmul", [&](ProfileReader& r) {
    MatmulRate& rate = m.matmuls.emplace_back();
    r.take("dtype", rate.dtype, true);
    r.take("flops", rate.flops, true);
    r.take("tile_rows", rate.tile_rows);
    r.take("tile_columns", rate.tile_columns);
    r.take("units", rate.units);
    r.take("depth", rate.depth);
    r.take("m_half", rate.m_half);
    r.take("n_half", rate.n_half);
    r.take("launch", rate.launch);
    r.take("misaligned", rate.misaligned);
  });
  top.each("sample", [&](ProfileReader& r) {
    MatmulSample& sample = m.samples.emplace_back();
    r.take("dtype", sample.dtype, true);
    r.take("m", sample.m, true);
    r.take("n", sample.n, true);
    r.take("k", sample.k, true);
    r.take("seconds", sample.seconds, true);
  });
  top.each("kernel", [&](ProfileReader& r) {
    KernelRate& rate = m.kernels.emplace_back();
    r.take("kernel", rate.kernel, true);
    r.take("dtype", rate.dtype);
    r.take("flops", rate.flops);
    r.take("bandwidth", rate.bandwidth);
  });
  top.each("context", [&](ProfileReader& r) {
    KernelContext& context = m.context.emplace_back();
    r.take("kernel", context.kernel, true);
    r.take("slower", context.slower, true);
  });
}

void read_links(ProfileReader& top, Machine& m) {
  top.each("link", [&](ProfileReader& r) {
    LinkTier& link = m.links.emplace_back();
    r.take("name", link.name, true);
    r.take("devices", link.devices);
    r.take("latency", link.latency);
    r.take("bandwidth", link.bandwidth, true);
    r.take("start", link.start);
  });
  top.each("collective", [&](ProfileReader& r) {
    CollectiveRate& rate = m.collectives.emplace_back();
    r.take("kind", rate.kind, true);
    r.take("link", rate.link, true);
    r.take("ranks", rate.ranks, true);
    r.take("latency", rate.latency);
    r.take("bandwidth", rate.bandwidth);
    r.take("measured", rate.measured);
  });
  top.each("overlap", [&](ProfileReader& r) {
    r.take("possible", m.overlap.possible);
    r.take("compute", m.overlap.compute);
    r.take("transfer", m.overlap.transfer);
    r.take("posting", m.overlap.posting);
  });
}

template <class... Args>
void line(std::string& text, fmt::format_string<Args...> format, Args&&... args) {
  text += fmt::format(format, std::forward<Args>(args)...);
}

}  // namespace

std::string read_machine_file(const std::string& path) {
  return read_text_file("machine profile", path);
}

Machine Machine::parse(const std::string& toml, const std::string& source) {
  const toml::table table = parse_toml(toml, source);
  Machine m;
  ProfileReader top(table, source);
  int64_t format = 0;
  top.take("format", format, true);
  TESSERA_REQUIRE(
      format == kProfileFormat,
      "{}: format {}; this build reads format {}: measure the machine again (tessera calibrate), "
      "or rename [[product]] to [[matmul]] and the kernel \"contract\" to \"matmul\"",
      source, format, kProfileFormat);
  top.take("name", m.name, true);
  top.take("device", m.device);
  top.take("device_type", m.device_type);
  TESSERA_REQUIRE(m.device_type == "cpu" || m.device_type == "cuda",
                  "{}: device_type '{}' is neither cpu nor cuda", source, m.device_type);
  top.take("date", m.date);
  top.take("source", m.source);
  top.take("memory", m.memory);
  top.take("reserve", m.reserve);
  TESSERA_REQUIRE(m.reserve >= 0 && (m.reserve == 0 || m.reserve < m.memory),
                  "{}: reserve {} of memory {}; it is at least 0 and leaves some", source,
                  m.reserve, m.memory);
  top.take("launch", m.launch);
  read_compute(top, m);
  read_links(top, m);
  top.take("residuals", m.residuals);
  top.finish();
  TESSERA_REQUIRE(m.overlap.compute >= 1 && m.overlap.transfer >= 1,
                  "{}: [[overlap]] slows down by {} and {}; both are at least 1", source,
                  m.overlap.compute, m.overlap.transfer);
  for (size_t t = 1; t < m.links.size(); ++t)
    TESSERA_REQUIRE(
        m.links[t - 1].devices > 0 &&
            (m.links[t].devices == 0 || m.links[t].devices > m.links[t - 1].devices),
        "{}: link '{}' joins {} devices and '{}' {}; tiers come from the innermost, and only "
        "the last may have 0",
        source, m.links[t - 1].name, m.links[t - 1].devices, m.links[t].name, m.links[t].devices);
  return m;
}

std::string Machine::to_toml() const {
  std::string t;
  const auto text = [](const std::string& s) { return toml_quoted(s); };
  line(t, "format = {}\nname = {}\ndevice = {}\ndevice_type = {}\ndate = {}\nsource = {}\n",
       kProfileFormat, text(name), text(device), text(device_type), text(date), text(source));
  line(t, "memory = {}\nreserve = {}\nlaunch = {:g}\n", memory, reserve, launch);
  if (!residuals.empty()) {
    t += "\n[residuals]\n";
    for (const auto& [key, value] : residuals) line(t, "{} = {:.6g}\n", text(key), value);
  }
  line(t, "\n[[overlap]]\npossible = {}\ncompute = {:g}\ntransfer = {:g}\nposting = {:g}\n",
       overlap.possible, overlap.compute, overlap.transfer, overlap.posting);
  for (const MemoryRate& r : memory_rates)
    line(t, "\n[[memory_rate]]\nup_to = {:g}\nbandwidth = {:g}\n", r.up_to, r.bandwidth);
  for (const MatmulRate& r : matmuls)
    line(t,
         "\n[[matmul]]\ndtype = {}\nflops = {:g}\ntile_rows = {}\ntile_columns = {}\nunits = {}\n"
         "depth = {:g}\nm_half = {:g}\nn_half = {:g}\nlaunch = {:g}\nmisaligned = {:g}\n",
         text(r.dtype), r.flops, r.tile_rows, r.tile_columns, r.units, r.depth, r.m_half, r.n_half,
         r.launch, r.misaligned);
  for (const KernelRate& r : kernels)
    line(t, "\n[[kernel]]\nkernel = {}\ndtype = {}\nflops = {:g}\nbandwidth = {:g}\n",
         text(r.kernel), text(r.dtype), r.flops, r.bandwidth);
  for (const KernelContext& c : context)
    line(t, "\n[[context]]\nkernel = {}\nslower = {:g}\n", text(c.kernel), c.slower);
  for (const LinkTier& r : links)
    line(t, "\n[[link]]\nname = {}\ndevices = {}\nlatency = {:g}\nbandwidth = {:g}\nstart = {:g}\n",
         text(r.name), r.devices, r.latency, r.bandwidth, r.start);
  for (const CollectiveRate& r : collectives) {
    line(t,
         "\n[[collective]]\nkind = {}\nlink = {}\nranks = {}\nlatency = {:g}\nbandwidth = {:g}\n",
         text(r.kind), text(r.link), r.ranks, r.latency, r.bandwidth);
    std::vector<std::string> points;
    for (const auto& [x, y] : r.measured) points.push_back(fmt::format("[{}, {:g}]", x, y));
    line(t, "measured = [{}]\n", fmt::join(points, ", "));
  }
  for (const MatmulSample& s : samples)
    line(t, "\n[[sample]]\ndtype = {}\nm = {}\nn = {}\nk = {}\nseconds = {:g}\n", text(s.dtype),
         s.m, s.n, s.k, s.seconds);
  return t;
}

}  // namespace tessera
