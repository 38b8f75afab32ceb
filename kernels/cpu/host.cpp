// Calls the host function of a user-defined op with the rank's slices.
#include <algorithm>

#include "base/fail.h"
#include "base/thrown.h"
#include "kernels/cpu/tables.h"

namespace tessera {

int HostCall::find(std::string_view name) const {
  std::vector<std::string> names;
  for (const HostDim& d : dims) {
    if (d.name == name) return static_cast<int>(names.size());
    names.push_back(d.name);
  }
  fail(ErrorKind::usage, "it has no dim '{}'{}", name, suggestion(std::string(name), names));
}

namespace cpu {
namespace {

class Host final : public Kernel {
 public:
  explicit Host(const KernelArgs& args)
      : step_(*args.step),
        coordinates_(args.coordinates.begin(), args.coordinates.end()),
        scalars_(args.scalars) {
    call_.op = step_.host.op;
    call_.attrs = &step_.host.attrs;
    for (const auto& [name, size] : step_.host.dims) call_.dims.push_back({name, size});
    for (const TensorArg& arg : args.in) call_.in.push_back({arg.data, arg.dtype, arg.strides});
    for (const TensorArg& arg : args.out) call_.out.push_back({arg.data, arg.dtype, arg.strides});
  }

  void run() override {
    for (size_t d = 0; d < call_.dims.size(); ++d) {
      HostDim& dim = call_.dims[d];
      dim.offset = step_.exprs[2 * d].eval(coordinates_, scalars_);
      dim.extent = step_.exprs[2 * d + 1].eval(coordinates_, scalars_);
      dim.valid = std::clamp<int64_t>(dim.extent - dim.offset, 0, dim.size);
    }
    try {
      step_.host.function(call_);
    } catch (const Error& e) {
      rethrow(e.kind(), e.what());
    } catch (...) {
      rethrow(ErrorKind::device, thrown_text().c_str());
    }
  }

 private:
  [[noreturn]] void rethrow(ErrorKind kind, const char* message) const {
    fail(kind, "[{}] host function of '{}': {} ({})", step_.origin.name, call_.op, message,
         step_.origin.source);
  }

  const Step& step_;
  std::vector<int> coordinates_;
  const int64_t* scalars_;
  HostCall call_;
};

}  // namespace

std::unique_ptr<Kernel> bind_host(const KernelArgs& args) { return std::make_unique<Host>(args); }

}  // namespace cpu
}  // namespace tessera
