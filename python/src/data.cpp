// Data sources, their batches, and tokenizers.
#include "tessera/data.h"

#include <span>

#include "convert.h"
#include "tessera/tokenizer.h"

namespace tessera::python {

namespace {

/// A source with the order in which a Batcher reads it.
class Batches {
 public:
  Batches(std::shared_ptr<DataSource> source, int64_t batch, const BatchOptions& options)
      : source_(std::move(source)), batcher_(*source_, batch, options) {}
  int64_t steps() const { return batcher_.steps(); }
  void feed(Session& session, int64_t step) const { batcher_.feed(session, step); }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const DataField& field : source_->fields()) all.push_back(field.name);
    return all;
  }

  /// The arrays of a step, by field.
  nb::dict read(int64_t step) const {
    nb::dict arrays;
    const int64_t rows = batcher_.rows(step);
    for (size_t f = 0; f < source_->fields().size(); ++f) {
      const DataField& field = source_->fields()[f];
      std::vector<std::string> dims{"batch"};
      std::vector<int64_t> sizes{rows}, extent;
      for (const Dim& d : field.dims) {
        dims.push_back(d.name);
        sizes.push_back(d.size);
        extent.push_back(d.size);
      }
      std::vector<int64_t> strides(extent.size(), 1);
      for (size_t d = extent.size(); d-- > 1;) strides[d - 1] = strides[d] * extent[d];
      Array array(field.dtype, dims, sizes);
      const int64_t bytes = array.elements() / rows * size_of(field.dtype);
      for (int64_t row = 0; row < rows; ++row) {
        const DataBox box{array.bytes.data() + row * bytes, std::vector<int64_t>(extent.size(), 0),
                          extent, strides};
        source_->read(batcher_.example(step, row), static_cast<int>(f), box);
      }
      arrays[field.name.c_str()] = numpy_of(std::move(array));
    }
    return arrays;
  }

 private:
  std::shared_ptr<DataSource> source_;
  Batcher batcher_;
};

}  // namespace

void bind_data(nb::module_& m) {
  nb::class_<DataSource>(m, "DataSource").def_prop_ro("examples", &DataSource::examples);
  m.def(
      "text_data",
      [](const std::string& path, int64_t length, int token_bytes, double first,
         double last) -> std::shared_ptr<DataSource> {
        TextOptions o;
        o.length = length;
        o.token_bytes = token_bytes;
        o.first = first;
        o.last = last;
        return std::make_shared<TextData>(path, o);
      },
      At());
  m.def(
      "idx_data",
      [](const std::string& images, const std::string& labels) -> std::shared_ptr<DataSource> {
        return std::make_shared<IdxData>(images, labels);
      },
      At());
  nb::class_<Batches>(m, "Batches")
      .def(
          "__init__",
          [](Batches* self, std::shared_ptr<DataSource> source, int64_t batch, uint64_t seed,
             bool shuffle, bool repeat) {
            BatchOptions o;
            o.seed = seed;
            o.shuffle = shuffle;
            o.repeat = repeat;
            o.drop_tail = !repeat;
            new (self) Batches(std::move(source), batch, o);
          },
          At())
      .def_prop_ro("steps", &Batches::steps)
      .def_prop_ro("names", &Batches::names, "The inputs that a step is fed.")
      .def("feed", &Batches::feed, Releasing(), nb::arg("session"), nb::arg("step"))
      .def("read", &Batches::read, At(), nb::arg("step"));
  nb::class_<Tokenizer>(m, "Tokenizer", "Text to token ids and back.")
      .def_static(
          "load",
          [](const std::string& path) {
            return std::make_unique<Tokenizer>(Tokenizer::load(path));
          },
          At(), nb::arg("path"),
          "tokenizer.json, tekken.json, a SentencePiece model, or a folder that has one of them.")
      .def(
          "encode", [](const Tokenizer& t, const std::string& text) { return t.encode(text); },
          At(), nb::arg("text"), "The token ids of a text.")
      .def(
          "decode",
          [](const Tokenizer& t, const std::vector<int32_t>& ids, bool skip_special) {
            const std::string text = t.decode(ids, skip_special);
            return nb::bytes(text.data(), text.size()).attr("decode")("utf-8", "replace");
          },
          At(), nb::arg("ids"), nb::arg("skip_special") = false,
          "The text of token ids; skip_special leaves out those such as the end token.")
      .def_prop_ro("vocab_size", &Tokenizer::vocab_size)
      .def_prop_ro("bos", &Tokenizer::bos)
      .def_prop_ro("eos", &Tokenizer::eos)
      .def("__repr__", &Tokenizer::description);
}

}  // namespace tessera::python
