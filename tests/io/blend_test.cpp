// Blends: shares, epochs, and that a step is a function of the seed.
#include <map>
#include <memory>
#include <set>

#include "io/corpus_files.h"
#include "support/io_folder.h"

namespace tessera {
namespace TESSERA_FILE {

using test::Folder;
using test::Ints;
using test::read_field;

/// Examples are their own numbers.
class Numbers : public DataSource {
 public:
  explicit Numbers(int64_t count, const std::string& field = "x") : count_(count) {
    fields_ = {{field, DType::int32, {Dim("length", 1)}}};
  }
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t examples() const override { return count_; }
  void read(int64_t example, int, const DataBox& box) const override {
    *static_cast<int32_t*>(box.data) = static_cast<int32_t>(example);
  }

 private:
  int64_t count_;
  std::vector<DataField> fields_;
};

std::shared_ptr<const DataSource> numbers(int64_t count) {
  return std::make_shared<Numbers>(count);
}

TEST_CASE("a blend has each part's share, and every example", "[corpus][fast]") {
  const BlendData blend(
      {{0.5, numbers(100), "a"}, {0.3, numbers(90), "b"}, {0.2, numbers(7), "c"}});
  CHECK(blend.examples() == 300);
  std::map<int64_t, std::map<int64_t, int>> seen;
  for (int64_t i = 0; i < blend.examples(); ++i) {
    const auto [part, example] = blend.place(i);
    ++seen[part][example];
    CHECK(read_field<int32_t>(blend, i, "x") == Ints{static_cast<int32_t>(example)});
  }
  const int64_t shares[] = {150, 90, 60}, sizes[] = {100, 90, 7};
  for (int64_t part = 0; part < 3; ++part) {
    int64_t count = 0;
    int least = 1000, most = 0;
    for (const auto& [example, times] : seen[part]) {
      count += times;
      least = std::min(least, times), most = std::max(most, times);
    }
    CHECK(count == shares[part]);
    CHECK(std::ssize(seen[part]) == sizes[part]);
    CHECK(most - least <= 1);
  }
  // For evaluation no example comes twice, and parts are read from end to end.
  const BlendData held({{0.5, numbers(100), "a"}, {0.3, numbers(90), "b"}, {0.2, numbers(7), "c"}},
                       false);
  CHECK(held.examples() == 18 + 11 + 7);
  std::set<std::pair<int64_t, int64_t>> once;
  for (int64_t i = 0; i < held.examples(); ++i) {
    const auto [part, example] = held.place(i);
    once.emplace(part, example);
  }
  CHECK(std::ssize(once) == held.examples());
  CHECK(once.contains({0, 94}));
}

TEST_CASE("what a step of a blend reads is a function of seed and step", "[corpus][fast]") {
  const auto make = [] {
    return std::make_unique<BlendData>(std::vector<BlendPart>{
        {0.5, numbers(1000), "a"}, {0.3, numbers(500), "b"}, {0.2, numbers(77), "c"}});
  };
  const auto one = make(), two = make();
  const Batcher first(*one, 8, {.seed = 3}), second(*two, 8, {.seed = 3}),
      other(*two, 8, {.seed = 4});
  int counts[3] = {};
  bool differs = false;
  for (int64_t step = 0; step < 250; ++step) {  // 2,000 of 2,000 examples
    for (int64_t row = 0; row < 8; ++row) {
      const int64_t example = first.example(step, row);
      CHECK(example == second.example(step, row));  // read from any step on, by any rank
      differs = differs || example != other.example(step, row);
      ++counts[one->place(example).part];
    }
  }
  CHECK(differs);
  CHECK(counts[0] == 1000);
  CHECK(counts[1] == 600);
  CHECK(counts[2] == 400);
}

TEST_CASE("errors of blends", "[corpus][errors]") {
  const Folder f;
  const auto error = [&](std::vector<BlendPart> parts) {
    return f.error([&] { BlendData(std::move(parts)); });
  };
  CHECK(error({}) == "usage [data] a blend of nothing; it has at least 1 part");
  CHECK(error({{0, numbers(3), "a"}}) ==
        "usage [data] 'a' has weight 0 in a blend; a weight is a number above 0 (leave out what is "
        "not wanted)");
  CHECK(error({{1, numbers(3), "a"}, {1, std::make_shared<Numbers>(3, "y"), "b"}}) ==
        "usage [data] 'a' and 'b' of a blend have different fields; open them with the same "
        "options");
  CHECK(error({{1, numbers(3), "a"}, {1e-20, numbers(3), "b"}}) ==
        "usage [data] 'b' has weight 1e-20 of 1 in a blend: 3e+20 examples until each of its 3 "
        "came; give it more weight");
}

}  // namespace TESSERA_FILE
}  // namespace tessera
