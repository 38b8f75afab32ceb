// Models of Hugging Face against what transformers computes with them: a tiny random one of each
// family.
#include "tessera/model_folder.h"

#include "io/model_description.h"
#include "support/model_run.h"

namespace tessera {
namespace TESSERA_FILE {

using test::kModels;
using test::Run;

constexpr const char* kNames[] = {
    "llama",  "llama-old",   "mistral",           "qwen2",     "qwen3", "gpt2",
    "gemma2", "gemma3",      "mixtral",           "qwen3-moe", "t5",    "t5-old",
    "bert",   "deepseek-v3", "deepseek-v3-plain", "vit"};

/// |a - b| / |b| of the gradient of each tensor that transformers recorded; the largest.
double gradient_difference(const ModelFolder& folder, const nn::TransformerOptions& o,
                           const Run& ours, const std::string& expected_path, int& compared) {
  const SafetensorsReader expected(expected_path);
  const Family* family = nullptr;
  for (const Family* f : families()) {
    if (f->model_type == folder.family()) family = f;
  }
  double worst = 0;
  compared = 0;
  for (const MappedTensor& t : tensor_map(*family, o).tensors) {
    if (!expected.find("grad." + t.name)) continue;
    ++compared;
    const Array theirs = expected.read("grad." + t.name);
    REQUIRE(theirs.sizes == t.sizes);
    double apart = 0, size = 0;
    for (const TensorPart& part : t.parts) {
      const Array& mine = ours.gradients.at(part.parameter);
      Slice whole;
      whole.dims = mine.dims;
      whole.valid = mine.sizes;
      whole.offset.assign(mine.sizes.size(), 0);
      whole.strides.assign(mine.sizes.size(), 1);
      for (size_t d = mine.sizes.size(); d-- > 1;)
        whole.strides[d - 1] = whole.strides[d] * mine.sizes[d];
      visit_runs(part, whole, [&](int64_t offset, const int64_t* to, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
          const double a = mine.at(to[i]), b = theirs.at(offset + i);
          apart += (a - b) * (a - b);
          size += b * b;
        }
      });
    }
    INFO(folder.family() << " " << t.name);
    CHECK(size > 0);
    worst = std::max(worst, std::sqrt(apart / size));
  }
  return worst;
}

TEST_CASE("models of Hugging Face give the logits and gradients of transformers in every layout",
          "[model_folder]") {
  struct Case {
    const char *mesh, *rules;
    bool fsdp = false, scan = true;
  };
  const Case cases[] = {
      {"one:1", ""},
      {"one:1", "", false, false},
      {"model:2", "heads,ff,vocab?:model"},
      {"data:2", "batch:data", true},
      {"model:2", "length,target_length?:model"},
      {"model:2", "length,target_length?,memory_length:model"},
      {"model:2", "experts?,vocab?,classes?:model"},
      {"data:2", "batch,experts?:data"},
      {"data:2;model:2", "batch:data;experts?:data+model"},
      {"data:2;model:2", "batch,experts?:data+model"},
      {"data:2;model:2", "batch:data;length,target_length?:model;experts?:data+model"},
      {"data:2;model:2", "batch,experts?:data;ff:model"},
      {"data:2;model:2", "batch:data;heads,ff,vocab?:model", true}};
  for (const char* name : kNames) {
    const ModelFolder folder(kModels + name);
    const std::string expected = kModels + name + "/expected.st";
    const SafetensorsReader recorded(expected);
    const Array logits = recorded.read("logits");
    for (const Case& c : cases) {
      const nn::TransformerOptions o = test::options_of(folder, c.scan);
      const Run ours = test::run_model(folder, o, c.mesh, c.rules, expected, c.fsdp);
      INFO(name << " on " << c.mesh << " under '" << c.rules << "', fsdp " << c.fsdp << ", scan "
                << o.scan);
      CHECK(test::difference(ours.logits, logits) < 1e-4);
      CHECK(ours.loss == Approx(recorded.read("loss").at(0)).epsilon(1e-5));
      int compared = 0;
      CHECK(gradient_difference(folder, o, ours, expected, compared) < 1e-4);
      CHECK(compared >= 10);
    }
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera
