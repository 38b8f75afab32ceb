// Convolution and its two transposes as oneDNN primitives on images with channels last. Every run
// reorders the filter into the library's order (a filter gradient out of it). x and y are used in
// place if they are dense, else copied image by image. The library only gets the boxes of x and y
// that this rank's windows read. Filter gradients of several calls are added in the library's
// order, in float32 as the library accumulates them.
#include "kernels/cpu/conv_direct.h"

#include <algorithm>

#include "kernels/cpu/blas.h"
#include "kernels/cpu/strided_copy.h"

#ifdef TESSERA_HAVE_DNNL
#include <dnnl.hpp>
#include <string_view>

#include "kernels/cpu/onednn_call.h"
#endif

namespace tessera::cpu {

#ifdef TESSERA_HAVE_DNNL

namespace {

using Memory = dnnl::memory;
using Dims = Memory::dims;

/// Differences between oneDNN's versions: how primitives are described.
struct Problem {
  Memory::desc x, filter, y;
  Dims strides, dilations, before, after;
  const dnnl::engine& engine;
  const dnnl::primitive_attr& attr;

  static constexpr auto kDirect = dnnl::algorithm::convolution_direct;
#if DNNL_VERSION_MAJOR >= 3
  auto forward() const {
    return dnnl::convolution_forward::primitive_desc(engine, dnnl::prop_kind::forward_training,
                                                     kDirect, x, filter, y, strides, dilations,
                                                     before, after, attr);
  }
  template <class Primitive>
  auto backward() const {
    return typename Primitive::primitive_desc(engine, kDirect, x, filter, y, strides, dilations,
                                              before, after, forward(), attr);
  }
#else
  auto forward() const {
    using Primitive = dnnl::convolution_forward;
    const Primitive::desc d(dnnl::prop_kind::forward_training, kDirect, x, filter, y, strides,
                            dilations, before, after);
    return Primitive::primitive_desc(d, attr, engine);
  }
  template <class Primitive>
  auto backward() const {
    const typename Primitive::desc d(kDirect, x, filter, y, strides, dilations, before, after);
    return typename Primitive::primitive_desc(d, attr, engine, forward());
  }
#endif
};

/// A primitive with its operands, whose addresses may be set before a run.
struct Call {
  dnnl::primitive primitive;
  Memory operands[4];  ///< scratch, then in, (in,) out
  int ids[4] = {};
  int count = 0;

  void run(const dnnl::stream& stream) const {
    // The C++ wrapper would allocate in every run.
    dnnl_exec_arg_t args[4];
    for (int i = 0; i < count; ++i) args[i] = {ids[i], operands[i].get()};
    const dnnl_status_t status = dnnl_primitive_execute(primitive.get(), stream.get(), count, args);
    TESSERA_CHECK(status == dnnl_success, "oneDNN ends a convolution with status {}",
                  static_cast<int>(status));
  }
};

/// Thrown if the library declines, or has no kernel of its own for the processor.
struct Declined {};

class DirectConv final : public Kernel {
 public:
  DirectConv(const KernelArgs& args, const DirectPlan& plan, std::vector<WindowDim> dims)
      : args_(args), sides_(*args.step), plan_(plan), dims_(std::move(dims)) {
    const OneDnnCall call;
    attr_.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    place_workspace();
    place(x_, *sides_.x, plan_.x, kInputs);
    place(y_, *sides_.y, plan_.y, kOutputs);
    call_images_ = plan_.images;
    if (x_.copy != nullptr || y_.copy != nullptr) call_images_ = plan_.copied_images;
    if (!is_row_of_images(x_) || !is_row_of_images(y_)) call_images_ = 1;
    if (call_images_ < plan_.images && sides_.result == kOfFilter && plan_.sums_bytes == 0)
      throw Declined{};
    make_calls();
    if (sides_.result == kOfX) {
      x_nest_ = simple_nest(sides_.x->sizes, {sides_.x->strides});
    }
  }

  void run() override {
    const OneDnnCall call;
    if (x_.is_part && sides_.result == kOfX)
      with_elements([&](auto zero) { clear_x<decltype(zero)>(); });
    if (sides_.result != kOfFilter) order_filter_.run(stream_);
    for (int64_t image = 0; image < plan_.images; image += call_images_) {
      set_images(x_, image, sides_.result != kOfX);
      set_images(y_, image, sides_.result != kOfY);
      convolve_.run(stream_);
      stream_.wait();
      if (x_.copy != nullptr && sides_.result == kOfX) copy_out(x_, image);
      if (y_.copy != nullptr && sides_.result == kOfY) copy_out(y_, image);
      if (sides_.result == kOfFilter && call_images_ < plan_.images) add_filter(image == 0);
    }
    if (sides_.result == kOfFilter) order_filter_.run(stream_);
    stream_.wait();
  }

 private:
  /// x or y as the library sees it.
  struct Side {
    char* data = nullptr;         ///< first element of the box of the first image
    std::vector<int64_t> images;  ///< offsets of the images
    char* copy = nullptr;         ///< copy of copied_images images, or null
    int64_t elements = 1;         ///< elements of an image's box
    bool is_part = false;         ///< the box is smaller than the view
    int64_t channels = 1;         ///< all groups together
    std::vector<int64_t> sizes;   ///< of the spatial dims
    StridedCopy in, out;          ///< copies one image
    Memory* operand = nullptr;
  };

  /// Calls body with an unsigned integer as wide as an element.
  template <class Body>
  void with_elements(Body body) {
    plan_.item == 2 ? body(uint16_t{}) : body(uint32_t{});
  }

  void place_workspace() {
    TESSERA_CHECK(args_.workspace != nullptr, "conv needs {} bytes of workspace", plan_.total());
    char* at = static_cast<char*>(args_.workspace);
    const auto take = [&](int64_t bytes) { return std::exchange(at, at + bytes); };
    x_.copy = plan_.x.copied ? take(plan_.x.bytes) : nullptr;
    y_.copy = plan_.y.copied ? take(plan_.y.bytes) : nullptr;
    filter_ = take(plan_.filter_bytes);
    sums_ = plan_.sums_bytes > 0 ? take(plan_.sums_bytes) : filter_;
    scratch_ = take(plan_.scratch_bytes);
  }

  void place(Side& side, const View& view, const DirectSide& plan, Kind channels) {
    const auto& kinds = args_.step->as<ConvSpec>().kinds;
    side.channels = plan_.groups * (channels == kInputs ? plan_.inputs : plan_.outputs);
    side.images = offsets_of(*args_.step, kImages, view.strides);
    std::vector<int64_t> sizes, from;
    int64_t offset = 0;
    for (size_t s = 0; s < dims_.size(); ++s) {
      const WindowDim& d = dims_[s];
      const int64_t first = channels == kInputs ? d.x_first : d.y_first,
                    size = channels == kInputs ? d.x_size : d.y_size;
      offset += first * view.strides[kinds.size() + s];
      side.is_part = side.is_part || size != view.sizes[kinds.size() + s];
      side.sizes.push_back(size);
      sizes.push_back(size), from.push_back(view.strides[kinds.size() + s]);
    }
    side.data = static_cast<char*>(data_of(args_, &view)) + offset * plan_.item;
    for (const int64_t kind : {int64_t{kGroup}, int64_t{channels}}) {
      for (size_t d = 0; d < kinds.size(); ++d) {
        if (kinds[d] == kind) sizes.push_back(view.sizes[d]), from.push_back(view.strides[d]);
      }
    }
    std::vector<int64_t> dense(sizes.size());
    for (size_t d = sizes.size(); d-- > 0; side.elements *= sizes[d]) dense[d] = side.elements;
    if (plan.copied && (!plan.dense || side.is_part)) {
      side.in = StridedCopy(sizes, dense, from);
      side.out = StridedCopy(sizes, from, dense);
      return;
    }
    side.copy = nullptr;
    for (size_t d = 0; d < sizes.size(); ++d) {  // a box within longer lines is not dense
      if (sizes[d] != 1 && from[d] != dense[d]) throw Declined{};
    }
  }

  /// True if one call can take several images of the side.
  static bool is_row_of_images(const Side& side) {
    for (size_t i = 0; side.copy == nullptr && i < side.images.size(); ++i) {
      if (side.images[i] != static_cast<int64_t>(i) * side.elements) return false;
    }
    return true;
  }

  Memory::desc images(const Side& side) const {
    static constexpr Memory::format_tag kTags[3] = {
        Memory::format_tag::nwc, Memory::format_tag::nhwc, Memory::format_tag::ndhwc};
    Dims sizes = {call_images_, side.channels};
    sizes.insert(sizes.end(), side.sizes.begin(), side.sizes.end());
    return {sizes, type(), kTags[side.sizes.size() - 1]};
  }

  Memory::data_type type() const {
    return plan_.item == 2 && !plan_.widened ? Memory::data_type::bf16 : Memory::data_type::f32;
  }

  /// The view of the filter: groups (if several), outputs, inputs, window positions.
  Memory::desc filter_view() const {
    const View& f = *sides_.filter;
    const auto& kinds = args_.step->as<ConvSpec>().kinds;
    Dims sizes, strides;
    int64_t last = 1;  // end of the elements: a plausible stride for a dim of size 1
    for (size_t d = 0; d < f.sizes.size(); ++d) last += (f.sizes[d] - 1) * f.strides[d];
    const auto add = [&](int64_t size, int64_t stride) {
      sizes.push_back(size);
      strides.push_back(size == 1 ? last : stride);
    };
    for (const Kind kind : {kGroup, kOutputs, kInputs}) {
      if (kind == kGroup && plan_.groups == 1) continue;
      int64_t stride = 1;
      for (size_t d = 0; d < kinds.size(); ++d) {
        if (kinds[d] == kind && f.sizes[d] != 1) stride = f.strides[d];
      }
      add(count_of(*args_.step, kind), stride);
    }
    for (size_t s = 0; s < dims_.size(); ++s) add(dims_[s].windows, f.strides[kinds.size() + s]);
    return {sizes, plan_.item == 2 ? Memory::data_type::bf16 : Memory::data_type::f32, strides};
  }

  void make_calls() {
    const Memory::desc view = filter_view();
    Dims sizes;
    if (plan_.groups > 1) sizes.push_back(plan_.groups);
    sizes.insert(sizes.end(), {plan_.outputs, plan_.inputs});
    Problem p{images(x_), {}, images(y_), {}, {}, {}, {}, engine_, attr_};
    for (const WindowDim& d : dims_) {
      sizes.push_back(d.windows);
      p.strides.push_back(d.stride);
      p.dilations.push_back(d.dilation - 1);
      p.before.push_back(d.before);
      p.after.push_back(d.after);
    }
    const bool of_filter = sides_.result == kOfFilter;
    p.filter = {sizes, type(), Memory::format_tag::any};
    Memory::desc filter;
    if (sides_.result == kOfY) {
      const auto d = p.forward();
      filter = d.weights_desc();
      set(convolve_, d, {{DNNL_ARG_SRC, p.x}, {DNNL_ARG_WEIGHTS, filter}, {DNNL_ARG_DST, p.y}});
    } else if (sides_.result == kOfX) {
      const auto d = p.backward<dnnl::convolution_backward_data>();
      filter = d.weights_desc();
      set(convolve_, d,
          {{DNNL_ARG_DIFF_SRC, p.x}, {DNNL_ARG_WEIGHTS, filter}, {DNNL_ARG_DIFF_DST, p.y}});
    } else {
      const auto d = p.backward<dnnl::convolution_backward_weights>();
      filter = d.diff_weights_desc();
      set(convolve_, d,
          {{DNNL_ARG_SRC, p.x}, {DNNL_ARG_DIFF_WEIGHTS, filter}, {DNNL_ARG_DIFF_DST, p.y}});
    }
    if (static_cast<int64_t>(filter.get_size()) > plan_.filter_bytes) throw Declined{};
    filter_elements_ = static_cast<int64_t>(filter.get_size() / 4);
    const Memory::desc &from = of_filter ? filter : view, &to = of_filter ? view : filter;
    set(order_filter_, dnnl::reorder::primitive_desc(engine_, from, engine_, to, attr_),
        {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
    char* whole = call_images_ < plan_.images ? sums_ : filter_;
    order_filter_.operands[of_filter ? 2 : 1].set_data_handle(data_of(args_, sides_.filter));
    order_filter_.operands[of_filter ? 1 : 2].set_data_handle(of_filter ? whole : filter_);
    convolve_.operands[2].set_data_handle(filter_);
    x_.operand = &convolve_.operands[1];
    y_.operand = &convolve_.operands[3];
  }

  /// Sets up the call with the library's own operand orders.
  template <class Desc>
  void set(Call& call, const Desc& desc, std::initializer_list<std::pair<int, Memory::desc>> list) {
    const auto scratch = desc.scratchpad_desc();
    const std::string_view name = desc.impl_info_str();
    if (static_cast<int64_t>(scratch.get_size()) > plan_.scratch_bytes || name.starts_with("ref"))
      throw Declined{};
    call.primitive = dnnl::primitive(desc.get());
    call.ids[0] = DNNL_ARG_SCRATCHPAD;
    call.operands[0] = Memory(scratch, engine_, scratch_);
    call.count = 1;
    for (const auto& [id, operand] : list) {
      call.ids[call.count] = id;
      call.operands[call.count++] = Memory(operand, engine_, nullptr);
    }
  }

  char* at(const Side& side, int64_t image) const {
    return side.data + side.images[static_cast<size_t>(image)] * plan_.item;
  }

  /// Points the library to the images from `image` on; `in`: copies them in first.
  void set_images(Side& side, int64_t image, bool in) {
    if (side.copy == nullptr) return side.operand->set_data_handle(at(side, image));
    side.operand->set_data_handle(side.copy);
    for (int64_t i = 0; in && i < call_images_; ++i) {
      if (plan_.widened) {
        side.in.copy(reinterpret_cast<float*>(side.copy) + i * side.elements,
                     reinterpret_cast<const BFloat16*>(at(side, image + i)));
        continue;
      }
      with_elements([&](auto zero) {
        using T = decltype(zero);
        side.in.copy(reinterpret_cast<T*>(side.copy) + i * side.elements,
                     reinterpret_cast<const T*>(at(side, image + i)));
      });
    }
  }

  void copy_out(const Side& side, int64_t image) {
    for (int64_t i = 0; i < call_images_; ++i) {
      with_elements([&](auto zero) {
        using T = decltype(zero);
        side.out.copy(reinterpret_cast<T*>(at(side, image + i)),
                      reinterpret_cast<const T*>(side.copy) + i * side.elements);
      });
    }
  }

  void add_filter(bool first) {
    const float* part = reinterpret_cast<const float*>(filter_);
    float* sums = reinterpret_cast<float*>(sums_);
    if (first) {
      std::copy(part, part + filter_elements_, sums);
    } else {
      for (int64_t i = 0; i < filter_elements_; ++i) sums[i] += part[i];
    }
  }

  template <class T>
  void clear_x() {
    T* x = static_cast<T*>(data_of(args_, sides_.x));
    for_each<1>(x_nest_, x_nest_.rank(), [&](const auto& at) { x[at[0]] = T{}; });
  }

  KernelArgs args_;
  Sides sides_;
  DirectPlan plan_;
  std::vector<WindowDim> dims_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::primitive_attr attr_;
  Side x_, y_;
  Nest x_nest_;
  Call order_filter_, convolve_;
  char *filter_ = nullptr, *sums_ = nullptr, *scratch_ = nullptr;
  int64_t call_images_ = 1, filter_elements_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> bind_direct_conv(const KernelArgs& args, const DirectPlan& plan) {
  if (!plan.applies || (plan.item == 2 && !plan.widened && !BfloatGemm::is_fast())) return nullptr;
  std::vector<WindowDim> dims = direct_dims(args);
  if (dims.empty()) return nullptr;
  try {
    return std::make_unique<DirectConv>(args, plan, std::move(dims));
  } catch (const Declined&) {
    return nullptr;
  } catch (const dnnl::error&) {
    return nullptr;
  }
}

#else

std::unique_ptr<Kernel> bind_direct_conv(const KernelArgs&, const DirectPlan&) { return nullptr; }

#endif

}  // namespace tessera::cpu
