#include "fuzz/targets.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/crc32c.h"
#include "base/fail.h"
#include "cli/commands.h"
#include "io/checkpoint_files.h"
#include "io/manifest.h"
#include "tessera/data.h"
#include "tessera/machine.h"
#include "tessera/mesh.h"
#include "tessera/safetensors.h"

namespace tessera::test {

namespace {

/// A file in memory that stays open, with a path.
class MemoryFile {
 public:
  MemoryFile()
      : fd_(memfd_create("fuzz", MFD_CLOEXEC)), path_(fmt::format("/proc/self/fd/{}", fd_)) {}
  MemoryFile(const MemoryFile&) = delete;
  const std::string& with(std::string_view bytes) const {
    const bool good = pwrite(fd_, bytes.data(), bytes.size(), 0) == std::ssize(bytes) &&
                      ftruncate(fd_, std::ssize(bytes)) == 0;
    if (!good) std::abort();
    return path_;
  }

 private:
  int fd_;
  std::string path_;
};

/// Errors that Tessera means to throw are answers.
template <class Work>
void answer(Work work) {
  try {
    work();
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::internal) {
      std::fprintf(stderr, "internal error: %s\n", e.what());
      std::abort();
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "unexpected exception: %s\n", e.what());
    std::abort();
  }
}

/// What was read is written as a text that can be read; written again it stays the same.
template <class Read>
void round_trip(const std::string& input, Read read) {
  std::string first;
  bool good = false;
  answer([&] {
    first = read(input);
    good = true;
  });
  if (!good) return;
  std::string text = first, again = "nothing";
  try {
    text = read(first);
    again = text == first ? text : read(text);
  } catch (const std::exception& e) {
    again = e.what();
  }
  if (again == text) return;
  std::fprintf(stderr, "read and written:\n%s\nand again:\n%s\n", text.c_str(), again.c_str());
  std::abort();
}

void safetensors(const std::string& input) {
  static const MemoryFile file;
  const std::string& path = file.with(input);
  bool readable = false;  // if not, all that follows ends where this does
  answer([&] {
    const SafetensorsReader reader(path);
    for (const TensorInfo& t : reader.tensors()) reader.read(t.name);
    readable = true;
  });
  if (!readable) return;
  answer([&] { read_checkpoint(path); });
  answer([&] { read_tensor(path, "w"); });
}

/// The input as it is if it begins like a manifest, else inside of a frame whose checksum is right.
void manifest(const std::string& input) {
  const bool framed = input.starts_with("{\"crc32c\"");
  answer([&] {
    parse_manifest(framed ? input
                          : fmt::format("{{\"crc32c\":\"{:08x}\",\"manifest\":{}}}\n",
                                        crc32c(input.data(), input.size()), input),
                   "fuzz");
  });
}

void toml(const std::string& input) {
  static const Config base = cli::default_config({.name = "gpt",
                                                  .help = "",
                                                  .keys = {{"model.layers", "2", "blocks"},
                                                           {"model.width", "64", "elements"},
                                                           {"model.dropout", "0.1", "share"}},
                                                  .build = {},
                                                  .data = {},
                                                  .tokens = {},
                                                  .tiny = {},
                                                  .layout = ""});
  round_trip(input, [](const std::string& text) {
    Config config = base;
    config.load_toml_text(text, "fuzz");
    return config.to_toml();
  });
}

void layout(const std::string& input) {
  round_trip(input, [](const std::string& text) { return Layout::parse(text).to_string(); });
}

void mesh(const std::string& input) {
  round_trip(input, [](const std::string& text) { return Mesh::parse(text).to_string(); });
}

void machine(const std::string& input) {
  round_trip(input, [](const std::string& text) { return Machine::parse(text, "fuzz").to_toml(); });
}

void read_all(const DataSource& source) {
  for (size_t f = 0; f < source.fields().size(); ++f) {
    const DataField& field = source.fields()[f];
    DataBox box;
    int64_t elements = 1;
    for (size_t d = field.dims.size(); d-- > 0; elements *= field.dims[d].size) {
      box.offset.push_back(0);
      box.extent.insert(box.extent.begin(), field.dims[d].size);
      box.strides.insert(box.strides.begin(), elements);
    }
    std::vector<std::byte> bytes(static_cast<size_t>(elements * size_of(field.dtype)));
    box.data = bytes.data();
    for (const int64_t example : {int64_t{0}, source.examples() - 1})
      source.read(example, static_cast<int>(f), box);
  }
}

void tokens(const std::string& input) {
  static const MemoryFile file;
  const std::string& path = file.with(input);
  for (const int bytes : {1, 2, 4}) {
    answer([&] {
      TextOptions options;
      options.length = 4;
      options.token_bytes = bytes;
      options.vocabulary = bytes == 1 ? 128 : 1000;
      read_all(TextData(path, options));
    });
  }
}

/// JSON, or else lines of a tiktoken file.
void tokenizer(const std::string& input) {
  static const MemoryFile file;
  const bool json = input.starts_with('{');
  answer([&] {
    const Tokenizer tokenizer =
        Tokenizer::load(file.with(json ? input : "IQ== 0\n" + input), {json ? "" : ".+", {}});
    for (const std::string text : {"a  b1 <s>x\xC3\xA9\xFF",
                                   "\xE2\x96\x81"
                                   "aab"})
      tokenizer.decode(tokenizer.encode(text, {.add_special = true}));
  });
}

/// Small files of each kind of model, with every stage.
std::vector<std::string> tokenizer_seeds() {
  return {
      R"({"added_tokens":[{"id":4,"content":"<s>","special":true,"lstrip":true,"rstrip":true}],)"
      R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Strip"},)"
      R"({"type":"Replace","pattern":{"Regex":"x+"},"content":"a"}]},)"
      R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits"},{"type":"Split",)"
      R"("pattern":{"Regex":"\\s+(?!\\S)|b"},"behavior":"MergedWithNext","invert":true},)"
      R"({"type":"ByteLevel","add_prefix_space":true}]},"decoder":{"type":"ByteLevel"},)"
      R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},)"
      R"({"Sequence":{"id":"A"}}],"special_tokens":{"<s>":{"ids":[4]}}},)"
      R"("model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"\u0120":3},"merges":["a b"]}})",
      R"({"normalizer":{"type":"Prepend","prepend":"\u2581"},"pre_tokenizer":{"type":)"
      R"("Metaspace","replacement":"\u2581","prepend_scheme":"first"},"decoder":{"type":"Sequence",)"
      R"("decoders":[{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ",)"
      R"("start":1,"stop":0}]},"model":{"type":"Unigram","unk_id":0,"byte_fallback":true,)"
      R"("vocab":[["?",0],["\u2581",-1.5],["a",-2],["aa",-2.5],["<0x62>",-9]]}})",
      R"({"config":{"pattern":".","default_vocab_size":4,"default_num_special_tokens":2},)"
      R"("vocab":[{"rank":0,"token_bytes":"IQ=="}],"special_tokens":[{"rank":1,"token_str":"x"}]})",
      "Ig== 1\nISI= 2\n"};
}

/// The first half is the file of images, the second that of labels.
void images(const std::string& input) {
  const size_t cut = input.empty() ? 0 : std::min(input.size() - 1, size_t{1} + uint8_t(input[0]));
  static const MemoryFile pixels, labels;
  const std::string& first = pixels.with(input.substr(std::min<size_t>(1, input.size()), cut));
  const std::string& second = labels.with(input.substr(std::min(input.size(), cut + 1)));
  answer([&] { read_all(IdxData(first, second)); });
}

std::string with_length(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

std::string good_manifest() {
  Manifest m;
  m.files.push_back({"rank-00000.safetensors", 10, 1, 2});
  ManifestTensor& t = m.tensors["w"];
  t.shape.dims = {"r", "c"};
  t.shape.sizes = {4, 6};
  t.pieces = {{0, {0, 0}, {4, 3}}, {0, {0, 3}, {4, 3}}};
  const std::string text = to_text(m);
  const size_t begin = text.find("\"manifest\":") + 11;
  return text.substr(begin, text.size() - begin - 2);
}

std::string idx_pair() {
  const std::string pixels("\0\0\x08\x03\0\0\0\2\0\0\0\2\0\0\0\3abcdefghijkl", 28),
      labels("\0\0\x08\x01\0\0\0\2\1\2", 10);
  return std::string(1, static_cast<char>(pixels.size() - 1)) + pixels + labels;
}

/// The same, with the images as a gzip file.
std::string zipped_pair() {
  const std::string pixels(
      "\x1f\x8b\x08\0\0\0\0\0\2\3\x63\x60\xe0\x60\x66\x60\x60\x60\x82\x62\xe6\xc4\xa4\xe4\x94\xd4"
      "\xb4\xf4\x8c\xcc\xac\xec\x1c\0\x39\xcc\x2b\xe0\x1c\0\0\0",
      42);
  return std::string(1, static_cast<char>(pixels.size() - 1)) + pixels + idx_pair().substr(29);
}

/// Profiles with each table once.
std::vector<std::string> profiles() {
  const std::string head = "format = 1\nname = \"m\"\n";
  return {head + "memory = 1024\nlaunch = 2e-6\n[residuals]\nproducts = 0.1\n",
          head + "[[overlap]]\ncompute = 1.1\n[[memory_rate]]\nup_to = 3e7\nbandwidth = 5e12\n",
          head + "[[product]]\ndtype = \"float32\"\nflops = 1e14\ntile_rows = 128\nunits = 132\n",
          head + "[[sample]]\ndtype = \"float32\"\nm = 8\nn = 8\nk = 8\nseconds = 1e-6\n",
          head + "[[kernel]]\nkernel = \"attention\"\nflops = 1e14\n",
          head + "[[link]]\nname = \"node\"\ndevices = 8\nlatency = 3e-6\nbandwidth = 3.6e11\n",
          head +
              "[[collective]]\nkind = \"all_reduce\"\nlink = \"node\"\nranks = 8\n"
              "measured = [[64, 1e-6], [128, 2e-6]]\n"};
}

}  // namespace

const std::vector<FuzzTarget>& fuzz_targets() {
  static const std::vector<FuzzTarget> targets = {
      {"safetensors",
       safetensors,
       {with_length(R"({"__metadata__":{"format_version":"1","step":"3","serial":"1",)"
                    R"("dims":"{\"w\":[\"r\",\"c\"]}"},)"
                    R"("w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})",
                    "12345678"),
        with_length(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", "")},
       {"\"shape\"", "\"data_offsets\"", "F64", "I64", "[]", "[0,8]", "9223372036854775807", "-1",
        "1e300", "{\"w\":", "null"}},
      {"manifest",
       manifest,
       {good_manifest()},
       {"\"pieces\"", "\"extent\"", "[0,0]", "[4,3]", "[]", "9223372036854775807", "-1", "1e300",
        "null", "\"file\":1", "../", "float64", "1.5"}},
      {"toml",
       toml,
       {"[model]\nlayers = 2\n[train]\nlr = 1e-3\n[data]\npath = \"x\"\n[layout]\nmesh = "
        "\"data:2\"\nbatch = \"data\"\n\"heads,ff\" = [\"pod\", \"data\"]\n",
        "layout = \"batch:data\"\n[model]\nname = \"gpt\"\n"},
       {"[layout]", "[model]", "rules", "\"=data\"", "[[", "'''", "\"\"\"", "inf", "nan", "= {}",
        "0x7fffffffffffffff", "1979-05-27T07:32:00Z"}},
      {"layout",
       layout,
       {"batch:data;heads,ff,vocab:model", "@state d_model:data; @/*norm*/ length:model # x",
        "batch:pod+data\nlength:-;experts?:model;*:auto", "@params/*.w*/ ff=data"},
       {"@params", "@grads", "@/", "/", "+", ":", ";", "?", "=", "-", "auto", "*"}},
      {"mesh",
       mesh,
       {"data:2;model:8@nvlink", "rows:2,cols:4"},
       {":", ";", "@", "2147483648", "-1", "99999999999999999999", "1"}},
      {"tokens", tokens, {"some text of tokens, with more\x01\x02", ""}, {"\xff\xff", "\x80"}},
      {"tokenizer",
       tokenizer,
       tokenizer_seeds(),
       {"-1", "4194303", "{}", "[]", "null", "\\p{L}", "(?=", "\"type\":\"NFC\"", "true"}},
      {"machine",
       machine,
       profiles(),
       {"[[link]]", "[[sample]]", "measured", "= []", "[[1, 2], [3, 4]]", "inf", "nan", "-1",
        "1e300", "9223372036854775807", "\"\\u0001\"", "'\\'", "= true", "residuals"}},
      {"images",
       images,
       {idx_pair(), zipped_pair()},
       {std::string("\0\0\x08\x03", 4), "\xff\xff\xff\xff"}}};
  return targets;
}

}  // namespace tessera::test
