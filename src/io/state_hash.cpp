#include <fmt/format.h>

#include "base/sha256.h"
#include "tessera/inspect.h"

namespace tessera {

StateHash state_hash(Session& session) {
  StateHash hash;
  Sha256 all;
  for (const std::string& name : session.program().stored_names()) {
    const Array array = session.fetch(name);
    Sha256 own;
    own.add(fmt::format("{} {}", name, to_string(array.dtype)));
    for (size_t d = 0; d < array.dims.size(); ++d)
      own.add(fmt::format(" {}={}", array.dims[d], array.sizes[d]));
    own.add(array.bytes);
    hash.tensors.emplace_back(name, own.hex());
    all.add(hash.tensors.back().second);
  }
  hash.all = all.hex();
  return hash;
}

}  // namespace tessera
