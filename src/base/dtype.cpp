#include "tessera/dtype.h"

#include <limits>

#include "base/fail.h"
#include "base/identity.h"

namespace tessera {

int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return 4;
    case DType::float64:
      return 8;
    case DType::bfloat16:
    case DType::float16:
      return 2;
    case DType::int32:
      return 4;
    case DType::int64:
      return 8;
    case DType::uint8:
      return 1;
    case DType::bool_:
      return 1;
  }
  return 0;
}

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::float64:
      return "float64";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float16:
      return "float16";
    case DType::int32:
      return "int32";
    case DType::int64:
      return "int64";
    case DType::uint8:
      return "uint8";
    case DType::bool_:
      return "bool";
  }
  return "unknown";
}

DType parse_dtype(const char* name) {
  static const DType all[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16,
                              DType::int32,   DType::int64,   DType::uint8,    DType::bool_};
  std::vector<std::string> names;
  for (DType t : all) {
    if (std::string(name) == to_string(t)) return t;
    names.push_back(to_string(t));
  }
  fail(ErrorKind::usage, "unknown dtype '{}'{}", name, suggestion(name, names));
}

const char* to_string(Combiner combiner) {
  switch (combiner) {
    case Combiner::sum:
      return "sum";
    case Combiner::max:
      return "max";
    case Combiner::min:
      return "min";
    case Combiner::prod:
      return "prod";
    case Combiner::any:
      return "any";
    case Combiner::all:
      return "all";
  }
  return "unknown";
}

double identity_of(Combiner combiner, DType dtype) {
  const double infinity = std::numeric_limits<double>::infinity();
  switch (combiner) {
    case Combiner::max:
      return dtype == DType::bool_ ? 0 : -infinity;
    case Combiner::min:
      return dtype == DType::bool_ ? 1 : infinity;
    case Combiner::prod:
    case Combiner::all:
      return 1;
    case Combiner::sum:
    case Combiner::any:
      return 0;
  }
  return 0;
}

double last_in_order(DType dtype, bool smallest) {
  return smallest && is_floating(dtype)
             ? std::numeric_limits<double>::quiet_NaN()
             : identity_of(smallest ? Combiner::min : Combiner::max, dtype);
}

}  // namespace tessera
