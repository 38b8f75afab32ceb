// Order of compute steps: what may be computed while a collective is awaited.
#pragma once

#include "lower/passes/step_prices.h"
#include "program/program.h"

namespace tessera {

/// Moves compute steps that are needed later, such as gradients of filters, behind the start of a
/// collective whose result the next steps wait for, until its price is hidden. No move raises the
/// peak of live bytes. Collectives are still followed by their waits. Bodies of loops stay as they
/// are.
void fill_waits(Program& program, const StepPrices& prices);

}  // namespace tessera
