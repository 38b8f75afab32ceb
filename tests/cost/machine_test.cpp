// Machine profiles: those shipped, round trips, and what is wrong with bad ones.
#include "tessera/machine.h"

#include <fstream>

#include "cost/cost.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "support/io_folder.h"

namespace tessera::test {

namespace TESSERA_FILE {

const std::string kSmall = R"(
format = 2
name = "small"
memory = 1000
launch = 1e-6
[[memory_rate]]
up_to = 100
bandwidth = 200
[[memory_rate]]
bandwidth = 50
[[matmul]]
dtype = "float32"
flops = 1000
tile_rows = 4
tile_columns = 8
units = 2
depth = 2
[[kernel]]
kernel = "*"
bandwidth = 7
[[kernel]]
kernel = "reduce"
dtype = "float32"
flops = 3
[[kernel]]
kernel = "reduce"
flops = 2
[[link]]
name = "node"
devices = 4
bandwidth = 100
[[link]]
name = "network"
bandwidth = 10
)";

std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

void expect_bad(const std::vector<std::string>& words, const std::string& text) {
  expect_usage(words, [&] { Machine::parse(text, "mine.toml"); });
}

TEST_CASE("every shipped profile loads and survives a round trip", "[machine]") {
  CHECK(Machine::names().size() >= 4);
  for (const std::string& name : Machine::names()) {
    INFO(name);
    const Machine machine = Machine::load(name);
    CHECK(machine.name == name);
    CHECK(machine.memory > 30'000'000'000);
    CHECK(machine.links.size() >= 2);
    CHECK(machine.device_type == "cuda");
    CHECK(machine.matmul_seconds("bfloat16", 4096, 4096, 4096) > 5e-5);
    const std::string text = machine.to_toml();
    CHECK(Machine::parse(text, "copy").to_toml() == text);
    // Found by fuzzing: a number is written so that it can be read, however large.
    Machine rough = machine;
    rough.residuals = {{"all", 1e300}};
    rough.memory = 20'000'000'000'000'000;  // beyond 2^53
    CHECK(Machine::parse(rough.to_toml(), "copy").to_toml() == rough.to_toml());
  }
}

TEST_CASE("products go by tiles and waves", "[machine]") {
  const Machine m = Machine::parse(kSmall, "small");
  const double wave = 2.0 * 2 * 4 * 8 * (16 + 2) / 1000;  // both units, a tile each
  CHECK(m.matmul_seconds("float32", 8, 8, 16) == Approx(wave));
  // Partly filled tiles cost more than their share; smaller tiles may cost less than whole ones.
  CHECK(m.matmul_seconds("float32", 5, 8, 16) < wave);
  CHECK(m.matmul_seconds("float32", 5, 8, 16) > 5.0 / 8 * wave);
  CHECK(m.matmul_seconds("float32", 9, 8, 16) < 1.75 * wave);
  CHECK(m.matmul_seconds("float32", 9, 8, 16) > 9.0 / 8 * wave);
  CHECK(m.matmul_seconds("float32", 4, 8, 16, 4) == Approx(2 * wave));
  // One tile alone: k is cut in two for the two units.
  CHECK(m.matmul_seconds("float32", 4, 8, 16) < wave * (8 + 2) / (16 + 2) + 1e-12);
  CHECK(m.matmul_seconds("float32", 0, 8, 16) == 0);
}

TEST_CASE("memory, kernels and links are looked up", "[machine]") {
  const Machine m = Machine::parse(kSmall, "small");
  CHECK(m.memory_seconds(100) == Approx(0.5));
  CHECK(m.memory_seconds(101) == Approx(2.02));
  CHECK(m.kernel("gather", "float32").bandwidth == 7);
  CHECK(m.kernel("reduce", "float32").flops == 3);
  CHECK(m.kernel("reduce", "bfloat16").flops == 2);
  CHECK(m.find_link("network") == 1);
  expect_usage({"machine 'small' has no link class 'nvlink'", "node, network"},
               [&] { m.find_link("nvlink"); });
  expect_usage({"machine 'small' has no [[matmul]] for dtype 'bfloat16'", "it has float32"},
               [&] { m.matmul_seconds("bfloat16", 8, 8, 8); });
}

TEST_CASE("measured products correct the formula near them", "[machine]") {
  Machine m = Machine::parse(kSmall, "small");
  const double plain = m.matmul_seconds("float32", 8, 8, 16);
  m.samples.push_back({"float32", 8, 8, 16, 3 * plain});
  CHECK(m.matmul_seconds("float32", 8, 8, 16) == Approx(3 * plain));
  CHECK(Machine::parse(m.to_toml(), "copy").samples.size() == 1);
}

TEST_CASE("a plan may use the memory that libraries leave", "[machine]") {
  const Machine m = Machine::load("h100");
  CHECK(m.reserve > 0);
  CHECK(m.usable_memory() == m.memory - m.reserve);
  CHECK(Machine::parse(m.to_toml(), "copy").reserve == m.reserve);
  CHECK(Machine::parse(kSmall, "small").reserve == 0);
}

TEST_CASE("a bad profile says what is wrong where", "[machine][errors]") {
  expect_usage({"unknown machine 'h10'", "did you mean 'h100'", ".toml"},
               [] { Machine::load("h10"); });
  expect_error(ErrorKind::io, {"cannot open machine profile '/nowhere/m.toml'"},
               [] { Machine::load("/nowhere/m.toml"); });
  expect_error(ErrorKind::io, {"mine.toml", "line 2"},
               [] { Machine::parse("format = 2\nname = ", "mine.toml"); });
  expect_bad({"mine.toml: 'name' is missing"}, "format = 2");
  expect_bad({"mine.toml: device_type 'h100' is neither cpu nor cuda"},
             "format = 2\nname = \"m\"\ndevice_type = \"h100\"");
  expect_bad({"mine.toml: reserve 10 of memory 10; it is at least 0 and leaves some"},
             "format = 2\nname = \"m\"\nmemory = 10\nreserve = 10");
  expect_bad({"mine.toml: format 1; this build reads format 2: measure the machine again"},
             "format = 1");
  expect_bad({"mine.toml: [[matmul]] 1: unknown key 'flop'", "did you mean 'flops'"},
             with(kSmall, "units = 2", "flop = 2"));
  expect_bad({"mine.toml: [[matmul]] 1: 'flops' is missing"}, with(kSmall, "flops = 1000", ""));
  expect_bad({"mine.toml: [[matmul]] 1: 'flops' is not a number"},
             with(kSmall, "flops = 1000", "flops = \"fast\""));
  expect_bad({"[[link]] 2: 'bandwidth' is 0; it has to be more"},
             with(kSmall, "bandwidth = 10\n", "bandwidth = 0\n"));
  expect_bad({"[[link]] 1: 'bandwidth' is -100; it is at least 0"},
             with(kSmall, "bandwidth = 100", "bandwidth = -100"));
  expect_bad({"'name' is not text"}, with(kSmall, "\"small\"", "3"));
  expect_bad({"'link' is not a list of tables [[link]]"}, "format = 2\nname = \"x\"\nlink = 3\n");
  expect_bad({"link 'node' joins 4 devices and 'network' 2", "innermost"},
             kSmall + "devices = 2\n");
  expect_bad({"[[context]] 1: 'slower' is 0; it has to be more"},
             kSmall + "[[context]]\nkernel = \"reduce\"\nslower = 0\n");
  expect_bad({"[[overlap]] slows down by 0.5 and 1"}, kSmall + "[[overlap]]\ncompute = 0.5\n");
  expect_bad({"[[overlap]] 1: 'posting' is -1; it is at least 0"},
             kSmall + "[[overlap]]\nposting = -1\n");
  expect_bad({"[[overlap]] 1: 'possible' is not true or false"},
             kSmall + "[[overlap]]\npossible = 1\n");
  const std::string rate =
      kSmall + "[[collective]]\nkind = \"all_reduce\"\nlink = \"node\"\nranks = 2\n";
  expect_bad({"[[collective]] 1: 'measured' is missing"}, rate);
  expect_bad({"'measured' is not a list of pairs"}, rate + "measured = [[1, 2], [3]]\n");
  expect_bad({"the first numbers of 'measured' do not ascend at 1"},
             rate + "measured = [[1, 2], [1, 3]]\n");
  expect_bad({"'residuals' is not a table"}, "format = 2\nname = \"x\"\nresiduals = 3\n");
  expect_bad({"'residuals.all' is not a number"},
             "format = 2\nname = \"x\"\n[residuals]\nall = \"small\"\n");
  expect_bad({"mine.toml: 'memory' is 1e+30; it is at most 1e+18"},
             "format = 2\nname = \"x\"\nmemory = 1e30\n");
  expect_bad({"'measured' holds a number that is not finite"}, rate + "measured = [[1, inf]]\n");
}

TEST_CASE("a kernel among others takes longer by its context", "[machine][fast]") {
  const Machine alone = Machine::parse(kSmall, "small");
  const Machine among =
      Machine::parse(kSmall + "[[context]]\nkernel = \"reduce\"\nslower = 2.5\n", "small");
  CHECK(Machine::parse(among.to_toml(), "copy").to_toml() == among.to_toml());
  CHECK(among.slower_in_context("reduce") == 2.5);
  CHECK(among.slower_in_context("matmul") == 1);
  Step step;
  step.kernel = KernelKind::reduce;
  step.in = {{0, DType::float32, {64, 64}, {64, 1}, 0, {}}};
  step.out = {{1, DType::float32, {64, 1}, {1, 1}, 0, {}}};
  const Mesh mesh = Mesh::parse("a:1");
  CHECK(Costs(among, mesh).compute(step) == Approx(2.5 * Costs(alone, mesh).compute(step)));
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
