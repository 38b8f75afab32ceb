// Exported modules against PyTorch: fixtures that make_fixtures.py wrote.
#include "tessera/pytorch_model.h"

#include <cstdio>
#include <cstdlib>

#include "base/files.h"
#include "pytorch/comparison.h"
#include "support/catch.h"

namespace tessera {
namespace TESSERA_FILE {

const std::string kFolder = std::string(TESSERA_SOURCE_DIR) + "/tests/pytorch/data/";

std::vector<std::string> fixtures() {
  std::vector<std::string> names;
  for (const std::string& file : names_in(kFolder))
    if (file.ends_with(".pt2")) names.push_back(file.substr(0, file.size() - 4));
  return names;
}

TEST_CASE("exported modules give the values and gradients of PyTorch in every layout", "[pytorch_model]") {
  for (const std::string& name : fixtures()) {
    const PytorchModel model(kFolder + name + ".pt2");
    for (const test::MeshAndLayout& where : test::layouts_of(model)) {
      INFO(name << " on " << where.mesh << " in '" << where.layout << "'");
      const test::Difference d =
          test::compare_with_pytorch(model, kFolder + name + ".safetensors", where.mesh, where.layout);
      INFO(d.worst);
      CHECK(d.outputs > 0);
      CHECK(d.output < 1e-5);
      CHECK(d.gradient < 1e-5);
    }
  }
}

/// For scripts/pytorch_coverage: TESSERA_PYTORCH_CASES is a folder of such files, TESSERA_PYTORCH_LAYOUTS
/// the most layouts of each. Prints a line for each.
TEST_CASE("modules of a folder", "[.][pytorch_cases]") {
  const char* const folder = std::getenv("TESSERA_PYTORCH_CASES");
  const char* const most = std::getenv("TESSERA_PYTORCH_LAYOUTS");
  const std::string only = std::getenv("TESSERA_PYTORCH_ONLY") ? std::getenv("TESSERA_PYTORCH_ONLY") : "";
  if (!folder) return;
  for (const std::string& file : names_in(folder)) {
    if (!file.ends_with(".pt2") || (!only.empty() && file != only + ".pt2")) continue;
    const std::string front = folder + ("/" + file.substr(0, file.size() - 4));
    std::string line = file.substr(0, file.size() - 4) + "\t";
    try {
      const PytorchModel model(front + ".pt2");
      std::vector<test::MeshAndLayout> layouts = test::layouts_of(model);
      if (most && layouts.size() > static_cast<size_t>(std::atoi(most))) layouts.resize(static_cast<size_t>(std::atoi(most)));
      test::Difference all;
      for (const test::MeshAndLayout& where : layouts) {
        const test::Difference d = test::compare_with_pytorch(model, front + ".safetensors", where.mesh, where.layout);
        if (d.output > all.output || d.gradient > all.gradient) all.worst = d.worst + " in '" + where.layout + "'";
        all.output = std::max(all.output, d.output), all.gradient = std::max(all.gradient, d.gradient);
        all.outputs = d.outputs, all.gradients = d.gradients;
      }
      const bool equal = all.outputs > 0 && all.output < 1e-5 && all.gradient < 1e-5;
      line += fmt::format("{}\t{}\t{:.1e}\t{:.1e}\t{}\t{}", equal ? "equal" : "DIFFERENT", layouts.size(), all.output,
                          all.gradient, all.gradients, equal ? "" : all.worst);
      std::string names;
      for (const PytorchModel::FoundDim& d : model.dims()) names += fmt::format(" {}={}", d.name, d.size);
      line += "\t" + names;
    } catch (const std::exception& e) {
      line += std::string("error\t") + e.what();
    }
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera
