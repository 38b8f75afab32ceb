// window: one thread per element of the windows, which loads its element of the dim or the fill
// value. fold, its transpose: one thread per element of the dim, which sums the window elements
// that came from it in the order of the output index; no atomics.
#include "kernels/cuda/codegen.h"

namespace tessera::cuda {

namespace {

/// The step's relation, and where this rank's slices begin.
struct Related : WindowSpec {
  Arguments arguments;
  std::string begin, out_begin, window_begin;

  explicit Related(const KernelArgs& args)
      : WindowSpec(args.step->as<WindowSpec>()), arguments(args) {
    begin = arguments.expr(0);
    out_begin = arguments.expr(1);
    window_begin = arguments.expr(2);
  }

  Source finish(int64_t elements, const std::string& body) {
    constexpr int kThreads = 256;
    const std::string head = fmt::format(
        "  const long long e = static_cast<long long>(blockIdx.x) * {} + threadIdx.x;\n"
        "  if (e >= {}ll) return;\n",
        kThreads, elements);
    Source source;
    source.text = unit(arguments, kThreads, head + body);
    source.words = arguments.words();
    source.threads = kThreads;
    source.blocks = (elements + kThreads - 1) / kThreads;
    return source;
  }
};

}  // namespace

Source generate_window(const KernelArgs& args) {
  Related r(args);
  const int64_t elements = r.pre * r.out_memory * r.window_memory * r.post;
  if (elements == 0) return {};
  const std::string in = r.arguments.in(0), out = r.arguments.out(0);
  const DType dtype = args.in[0].dtype;
  std::string body = fmt::format(
      "  const long long post = e % {0}ll, k = e / {0}ll % {1}ll, o = e / {2}ll % {3}ll, pre = e / "
      "{4}ll;\n",
      r.post, r.window_memory, r.post * r.window_memory, r.out_memory,
      r.post * r.window_memory * r.out_memory);
  body += fmt::format(
      "  const long long go = o + {}, gk = k + {};\n"
      "  if (go < 0 || go >= {}ll || gk >= {}ll) return;  // padding\n"
      "  const long long i = {}ll * go + {}ll * gk - ({}ll);\n  long long at = i - {};\n",
      r.out_begin, r.window_begin, r.out_size, r.window_size, r.stride, r.dilation, r.lo, r.begin);
  if (r.wrap) body += fmt::format("  at = (at % {0}ll + {0}ll) % {0}ll;\n", r.size);
  body += fmt::format(
      "  const bool inside = {}at >= 0 && at < {}ll;\n"
      "  if (inside) {{\n    {}[e] = {}[(pre * {}ll + at) * {}ll + post];\n  }} else {{\n"
      "    narrow({}, {}[e]);\n  }}\n",
      r.wrap ? "" : fmt::format("i >= 0 && i < {}ll && ", r.size), r.memory, out, in, r.memory,
      r.post, literal(dtype, r.fill), out);
  return r.finish(elements, body);
}

Source generate_fold(const KernelArgs& args) {
  Related r(args);
  const int64_t elements = r.pre * r.memory * r.post;
  if (elements == 0) return {};
  const std::string in = r.arguments.in(0), out = r.arguments.out(0);
  const DType dtype = args.in[0].dtype;
  const char* type = register_type(dtype);
  std::string body = fmt::format(
      "  const long long post = e % {0}ll, at = e / {0}ll % {1}ll, pre = e / {2}ll;\n"
      "  const long long begin = {3}, first_o = {4}, first_k = {5};\n  {6} sum = 0;\n",
      r.post, r.memory, r.post * r.memory, r.begin, r.out_begin, r.window_begin, type);
  const std::string sum = fmt::format(
      "Sum::apply(sum, widen({}[((pre * {}ll + o) * {}ll + k) * "
      "{}ll + post]))",
      in, r.out_memory, r.window_memory, r.post);
  const std::string add = fmt::format(
      "sum = {};\n", is_narrow(dtype) ? rounded_text(dtype, sum)
                                      : "static_cast<" + std::string(type) + ">(" + sum + ")");
  if (r.wrap) {
    body += fmt::format(
        "  for (long long o = 0; o < {0}ll && o + first_o < {1}ll; ++o) {{\n"
        "    if (o + first_o < 0) continue;\n"
        "    for (long long k = 0; k < {2}ll && k + first_k < {3}ll; ++k) {{\n"
        "      const long long i = {4}ll * (o + first_o) + {5}ll * (k + first_k) - ({6}ll) - "
        "begin;\n"
        "      if ((i % {7}ll + {7}ll) % {7}ll == at) {8}    }}\n  }}\n",
        r.out_memory, r.out_size, r.window_memory, r.window_size, r.stride, r.dilation, r.lo,
        r.size, add);
  } else {
    body += fmt::format(
        "  const long long i = at + begin;\n"
        "  for (long long k = {0}ll - 1; k >= 0 && i >= 0 && i < {1}ll; --k) {{\n"
        "    const long long reached = i + ({2}ll) - {3}ll * (k + first_k);\n"
        "    const long long go = reached / {4}ll, o = go - first_o;\n"
        "    if (k + first_k >= {5}ll || reached < 0 || reached % {4}ll != 0) continue;\n"
        "    if (go >= {6}ll || o < 0 || o >= {7}ll) continue;\n    {8}  }}\n",
        r.window_memory, r.size, r.lo, r.dilation, r.stride, r.window_size, r.out_size,
        r.out_memory, add);
  }
  body += fmt::format("  narrow(sum, {}[e]);\n", out);
  return r.finish(elements, body);
}

}  // namespace tessera::cuda
