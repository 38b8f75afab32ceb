// The picture of a mesh: which ranks lie on which host, and over which links they talk.
#pragma once

#include <string>
#include <vector>

#include "pages/page.h"
#include "tessera/mesh.h"

namespace tessera::cli {

/// `hosts`: a list of [name, number of ranks] in order of rank. `links`: their names by axis, or
/// none.
pages::Json mesh_chart(const Mesh& mesh, const pages::Json& hosts,
                       const std::vector<std::string>& links = {});

}  // namespace tessera::cli
