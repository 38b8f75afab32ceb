// Which elements a rank sends to and gets from whom, to go from one layout of a tensor to another.
#pragma once

#include <span>

#include "collectives/communicator.h"
#include "program/program.h"

namespace tessera {

/// Fills collective.send and .recv of an exchange step for the rank at `coordinates`; `ranks` is
/// the size of the group over step.axes. Where several ranks hold an element, a rank takes it from
/// the holder that has its own coordinate on every axis that the source layout leaves unused: from
/// itself if it can, and copies spread over the holders. `scalars`: the loops' counters, equal on
/// all ranks.
void plan_exchange(const Program& program, const Step& step, std::span<const int> coordinates,
                   const int64_t* scalars, int ranks, Collective& collective);

}  // namespace tessera
