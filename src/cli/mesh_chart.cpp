#include "cli/mesh_chart.h"

namespace tessera::cli {

pages::Json mesh_chart(const Mesh& mesh, const pages::Json& hosts,
                       const std::vector<std::string>& links) {
  pages::Json axes = pages::Json::array();
  for (const MeshAxis& axis : mesh.axes()) axes.push_back({axis.name, axis.size});
  return {{"kind", "mesh"},
          {"title", "the mesh: " + mesh.to_string()},
          {"mesh", axes},
          {"hosts", hosts},
          {"links", links}};
}

}  // namespace tessera::cli
