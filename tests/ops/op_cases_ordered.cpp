// Rows of the ops that see all of one dim: slices, shifts, running sums, order.
#include <cmath>

#include "ops/op_cases.h"
#include "ops/window.h"

namespace tessera::test {

namespace {

using Tensors = OpCase::Tensors;

const Dim a("a", 5), b("b", 6), c("c", 4), n("n", 7);

using Function = std::function<Tensors(const Tensors&)>;

OpCase row(const std::string& name, std::vector<CaseInput> in, std::vector<std::string> splits,
           Function f) {
  return {name, std::move(in), std::move(splits),
          [f](Graph&, const Tensors& x) -> Tensors { return f(x); }};
}

void add_slices(std::vector<OpCase>& rows) {
  const CaseInput x = real("x", {a, n, c});
  const std::vector<std::string> splits = {"a", "n", "c"};
  rows.push_back(row("slice", {x}, splits, [](const Tensors& t) -> Tensors {
    return {slice(exp(t[0]), "n", 2, 4), slice(t[0], "a", 0, 5), slice(t[0], "c", 3, 1)};
  }));
  rows.push_back(row("pad", {x}, splits, [](const Tensors& t) -> Tensors {
    return {pad(exp(t[0]), "n", 1, 2), pad(t[0], "c", 0, 3, 0.5), pad(t[0], "a", 2, 0)};
  }));
  rows.push_back(row("shift", {x}, splits, [](const Tensors& t) -> Tensors {
    return {shift(exp(t[0]), "n", 2), shift(t[0], "n", -3, true), shift(t[0], "a", -1),
            shift(t[0], "c", 9, true)};
  }));
  rows.push_back(row("reversed", {x}, splits, [](const Tensors& t) -> Tensors {
    return {reversed(exp(t[0]), "n"), reversed(t[0], "a"), reversed(reversed(t[0], "c"), "n")};
  }));
  rows.back().expect = [](const std::vector<Whole>& in) {
    Whole y = in[0];
    each_index(y.sizes, [&](const std::vector<int64_t>& i) {
      y.data[(i[0] * 7 + i[1]) * 4 + i[2]] = std::exp(in[0].data[(i[0] * 7 + 6 - i[1]) * 4 + i[2]]);
    });
    return y;
  };
  const CaseInput at = integers("i", {a}, -2, 8), single = integers("j", {}, -2, 8);
  rows.push_back(row("windows", {x}, splits, [](const Tensors& t) -> Tensors {
    return {windows(exp(t[0]), "n", Dim("w", 3), {2, 2, 1, 3, 0.5}),
            windows(t[0], "c", Dim("w", 2))};
  }));
  const CaseInput blocks = real("x", {a, Dim("blocks", 5), Dim("block", 3)});
  rows.push_back(
      row("halo_exchange", {blocks}, {"a", "blocks", "block"}, [](const Tensors& t) -> Tensors {
        return {halo_exchange(exp(t[0]), "blocks", "block", 1, 2),
                halo_exchange(t[0], "blocks", "block", 4, 7),
                halo_exchange(t[0], "blocks", "block", 5, 0, true)};
      }));
  rows.push_back(row("dynamic_shift", {x, at, single}, splits, [](const Tensors& t) -> Tensors {
    return {dynamic_shift(exp(t[0]), t[1], "n"), dynamic_shift(t[0], t[2], "n", true)};
  }));
  rows.push_back(row("dynamic_slice", {x, at, single}, splits, [](const Tensors& t) -> Tensors {
    return {dynamic_slice(exp(t[0]), t[1], "n", 3), dynamic_slice(t[0], t[2], "a", 2)};
  }));
  rows.push_back(row("dynamic_update", {x, real("u", {a, Dim("n", 3), c}), at}, splits,
                     [](const Tensors& t) -> Tensors {
                       return {dynamic_update(exp(t[0]), sin(t[1]), t[2], "n")};
                     }));
  rows.push_back(
      row("concat", {x, real("y", {n, Dim("a", 3), c})}, splits, [](const Tensors& t) -> Tensors {
        return {concat({t[0], exp(t[1]), t[0]}, "a")};
      }));
  rows.push_back(row("concat_of_sums", {real("x", {a, n}), real("y", {n, b}), real("z", {a, c, b})},
                     {"a", "b", "c", "n"}, [](const Tensors& t) -> Tensors {
                       return {concat({einsum({t[0], t[1]}, {a, b}), reduce_sum(t[2], "c")}, "b")};
                     }));
  rows.push_back(row("split", {x}, splits, [](const Tensors& t) -> Tensors {
    return split(t[0], "n", {2, 4, 1});
  }));
  rows.push_back(row("stack", {real("x", {a, b}), real("y", {b, a})}, {"a", "b", "s"},
                     [](const Tensors& t) -> Tensors {
                       const Tensor stacked = stack({exp(t[0]), t[1], t[0]}, "s");
                       return {stacked, unstack(stacked, "a")[3]};
                     }));
}

void add_order(std::vector<OpCase>& rows) {
  const CaseInput x = real("x", {a, n, c}, -4, -1);
  const std::vector<std::string> splits = {"a", "n", "c", "k"};
  rows.push_back(row("argmax", {x}, splits, [](const Tensors& t) -> Tensors {
    return {argmax(t[0], "n"), argmax(t[0], "a"), argmax(exp(t[0]), "c")};
  }));
  rows.push_back(row("argmax_ties", {integers("x", {a, n}, -3, -2, DType::float32)}, {"a", "n"},
                     [](const Tensors& t) -> Tensors {
                       return {argmax(t[0], "n"), argmax(t[0], "a")};
                     }));
  rows.push_back(row("argmax_int", {integers("x", {a, n}, -9, -2)}, {"a", "n"},
                     [](const Tensors& t) -> Tensors {
                       return {argmax(t[0], "n"), argmax(t[0], "a")};
                     }));
  rows.push_back(row("top_k", {x}, splits, [](const Tensors& t) -> Tensors {
    const TopK last = top_k(t[0], "c", Dim("k", 2)), middle = top_k(exp(t[0]), "n", Dim("k", 3));
    return {last.values, last.indices, middle.values, middle.indices};
  }));
  // More elements than a few of each slice: what travels are those.
  const CaseInput wide = real("x", {a, Dim("n", 29)}, -4, -1);
  rows.push_back(row("top_of_slices", {wide}, splits, [](const Tensors& t) -> Tensors {
    const TopK few = top_k(t[0], "n", Dim("k", 3)), one = top_1(exp(t[0]), "n");
    return {few.values,  few.indices,       one.values,
            one.indices, argmax(t[0], "n"), nth_smallest(t[0], "n", 1)};
  }));
  rows.push_back(row("top_of_slices_ties",
                     {integers("x", {a, Dim("n", 29)}, -3, -2, DType::float32)}, {"a", "n"},
                     [](const Tensors& t) -> Tensors {
                       return {top_k(t[0], "n", Dim("k", 4)).indices, argmax(t[0], "n"),
                               top_k(cast(t[0], DType::int32), "n", Dim("k", 4)).values};
                     }));
  rows.push_back(row("sort", {x}, splits, [](const Tensors& t) -> Tensors {
    return {sort(t[0], "n"), sort(exp(t[0]), "a", true), argsort(t[0], "n"),
            argsort(t[0], "c", true)};
  }));
  rows.push_back(row("nth", {x}, splits, [](const Tensors& t) -> Tensors {
    return {nth_largest(t[0], "n", 2), nth_smallest(exp(t[0]), "n", 0), argmin(t[0], "a")};
  }));
  rows.push_back(row("order_ties", {integers("x", {a, n}, -3, -2, DType::float32)}, {"a", "n"},
                     [](const Tensors& t) -> Tensors {
                       return {argsort(t[0], "n"), argsort(t[0], "n", true), argmin(t[0], "a")};
                     }));
  rows.push_back(row("cumsum", {x}, splits, [](const Tensors& t) -> Tensors {
    return {cumsum(exp(t[0]), "n"), cumsum(t[0], "n", true), cumsum(t[0], "a", false, true),
            cumsum(exp(t[0]), "c", true, true)};
  }));
  rows.push_back(row("linear_scan", {x, real("d", {a, n, c}, -1, 1), real("h", {n})}, splits,
                     [](const Tensors& t) -> Tensors {
                       return {linear_scan(t[0], t[1], "n"),
                               linear_scan(exp(t[0]), t[2], "n", true),
                               linear_scan(t[0], t[2], "a"), linear_scan(t[1], t[2], "c", true)};
                     }));
  rows.push_back(row("linear_scan_of_sum",
                     {real("x", {a, n}), real("y", {n, b}), real("h", {b}, -1, 1)}, {"a", "b", "n"},
                     [](const Tensors& t) -> Tensors {
                       const Tensor sum = einsum({t[0], t[1]}, {a, b});
                       return {linear_scan(sum, t[2], "b"), linear_scan(sum, sin(sum), "a")};
                     }));
  rows.push_back(row("cumsum_of_sum", {real("x", {a, n}), real("y", {n, b})}, {"a", "b", "n"},
                     [](const Tensors& t) -> Tensors {
                       return {cumsum(einsum({t[0], t[1]}, {a, b}), "b"),
                               cumsum(einsum({t[0], t[1]}, {a, b}), "a"),
                               shift(einsum({exp(t[0]), t[1]}, {b, a}), "a", 1)};
                     }));
}

}  // namespace

std::vector<OpCase> ordered_cases() {
  std::vector<OpCase> rows;
  add_slices(rows);
  add_order(rows);
  return rows;
}

}  // namespace tessera::test
