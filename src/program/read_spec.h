// Reads the specs of steps and the attributes of user-defined ops.
#pragma once

#include <map>

#include "program/program.h"
#include "program/text_line.h"

namespace tessera {

/// "key=value" by key; each is taken once.
using Values = std::map<std::string, std::string>;

/// Sets the spec that the step's kernel or collective has, from all of `values`, which are those of
/// the line.
void read_spec(Values values, const TextLine& line, Step& step);
/// The value of an attribute, which ends at a space.
Attrs::Value read_attribute(TextLine& line);

}  // namespace tessera
