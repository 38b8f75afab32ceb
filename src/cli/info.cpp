#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/fail.h"
#include "cli/commands.h"
#include "tessera/build_info.h"

namespace tessera::cli {

int info(const Arguments& args) {
  const BuildInfo build = build_info();
  nlohmann::json report = {{"version", build.version}, {"cpu", build.cpu}, {"cores", build.cores},
                           {"blas", build.blas},       {"mpi", build.mpi}, {"cuda", build.cuda},
                           {"nccl", build.nccl}};
  fmt::print("Tessera {}\ncpu   {} ({} cores, {})\nblas  {}\nmpi   {}\ncuda  {}\nnccl  {}\n",
             build.version, build.cpu, build.cores, build.isa, build.blas, build.mpi, build.cuda,
             build.nccl);
  if (!args.mesh.empty()) {
    const Mesh mesh = Mesh::parse(args.mesh);
    fmt::print("mesh  {} = {} ranks\n", mesh.to_string(), mesh.size());
    int stride = mesh.size();
    for (const MeshAxis& axis : mesh.axes()) {
      stride /= axis.size;
      fmt::print("  {}: {} groups of {}, ranks {} apart\n", axis.name, mesh.size() / axis.size,
                 axis.size, stride);
      report["mesh"][axis.name] = {{"size", axis.size}, {"stride", stride}};
    }
  }
  if (!args.json.empty()) {
    std::ofstream file(args.json);
    file << report.dump(2) << '\n';
    if (!file.flush()) fail(ErrorKind::io, "cannot write '{}'", args.json);
  }
  return 0;
}

}  // namespace tessera::cli
