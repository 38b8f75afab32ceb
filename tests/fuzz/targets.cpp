#include "fuzz/targets.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/crc32c.h"
#include "base/fail.h"
#include "base/hash.h"
#include "cli/commands.h"
#include "cli/plan_cache.h"
#include "cli/report_page.h"
#include "gpu/device/gemm_algorithm_cache.h"
#include "io/checkpoint_files.h"
#include "io/families/family_file.h"
#include "io/manifest.h"
#include "io/model_description.h"
#include "program/text.h"
#include "tessera/chat_template.h"
#include "tessera/data.h"
#include "tessera/machine.h"
#include "tessera/mesh.h"
#include "tessera/safetensors.h"

namespace tessera::test {

namespace {

constexpr const char *kQuestion = "0.1|question", *kProblem = "8x8x8";

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

void chat_template(const std::string& input) {
  answer([&] {
    const ChatTemplate chat(input, "<s>", "</s>");
    chat.render({{"system", "s"}, {"user", " u"}, {"assistant", "a"}}, true);
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

void report(const std::string& input) {
  answer([&] { cli::report_page({{input, "fuzz"}}); });
}

void kept_plans(const std::string& input) {
  static const cli::PlanSpace space{
      Mesh::parse("data:2;model:4"),
      {{"train.microbatches", {"1", "2", "4"}}, {"train.recompute", {"none", "block"}}}};
  std::string first;
  bool good = false;
  answer([&] {
    const std::vector<cli::AutoPlan> plans = cli::parse_plans_file(input, kQuestion, 3);
    for (const cli::AutoPlan& plan : plans) cli::require_in(space, plan);
    first = cli::plans_file(kQuestion, plans);
    good = true;
  });
  if (good && cli::plans_file(kQuestion, cli::parse_plans_file(first, kQuestion, 3)) != first) {
    std::fprintf(stderr, "plans that are not read as they were written: %s\n", first.c_str());
    std::abort();
  }
}

/// What is taken for an algorithm is short, printable, and written as it was read.
void algorithm(const std::string& input) {
  std::string choice;
  answer([&] { choice = parse_gemm_choice(input, kProblem); });
  if (!choice.empty() && text_of_gemm_choice(kProblem, choice) != input) {
    std::fprintf(stderr, "an algorithm that is not written as it was read: %s\n", choice.c_str());
    std::abort();
  }
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

/// Logs with each kind of record.
std::vector<std::string> logs() {
  const std::string head =
      R"({"config":{"layout.mesh":"data:2","layout.rules":"batch:data"},"ranks":2,"backend":"t",)"
      R"("version":"0.1","program":"1f","memory":{"params":8,"state":16,"transient":4,)"
      R"("at_peak":[{"tensor":"w","bytes":8}]},"communication":[{"kind":"all_reduce",)"
      R"("axes":"data","tensor":"w","rule":"batch:data","source":"m.cpp:1","bytes":8}]})"
      "\n";
  const std::string steps =
      R"({"step":1,"steps":3,"loss":2.5,"grad_norm":1.5,"lr":1e-3,"tokens_per_s":9,"ms":3})"
      "\n"
      R"({"step":2,"loss":2.25,"slowest_ms":4,"median_ms":3,"skipped":0})"
      "\n";
  return {head + steps,
          steps + R"({"step":2,"eval_loss":2.5})" + "\n" +
              R"({"step":2,"save_ms":1,"save_wait_ms":2})" + "\n",
          head + R"({"startup":{"graph":0.1}})" + "\n" +
              R"({"time_line":[["h","einsum",0.5],["h","wait",0.25],["g","all_reduce",1]]})" +
              "\n" + R"({"profile":[{"ms":1,"op":"einsum","flops":8,"bytes":8}]})" + "\n" +
              R"({"step":3,"lo)"};
}

/// Profiles with each table once.
std::vector<std::string> profiles() {
  const std::string head = "format = 2\nname = \"m\"\n";
  return {head + "memory = 1024\nlaunch = 2e-6\n[residuals]\nproducts = 0.1\n",
          head + "[[overlap]]\ncompute = 1.1\n[[memory_rate]]\nup_to = 3e7\nbandwidth = 5e12\n",
          head + "[[matmul]]\ndtype = \"float32\"\nflops = 1e14\ntile_rows = 128\nunits = 132\n",
          head + "[[sample]]\ndtype = \"float32\"\nm = 8\nn = 8\nk = 8\nseconds = 1e-6\n",
          head + "[[kernel]]\nkernel = \"attention\"\nflops = 1e14\n",
          head + "[[link]]\nname = \"node\"\ndevices = 8\nlatency = 3e-6\nbandwidth = 3.6e11\n",
          head +
              "[[collective]]\nkind = \"all_reduce\"\nlink = \"node\"\nranks = 8\n"
              "measured = [[64, 1e-6], [128, 2e-6]]\n"};
}

/// config.json of a model's folder.
void model(const std::string& input) {
  answer([&] { describe_model("folder", "folder/config.json", input); });
}

/// family.toml of a model's folder, with a config.json of usual keys.
void family(const std::string& input) {
  answer([&] {
    const auto own = std::make_shared<const Family>(read_family("family.toml", input));
    own->weights({});
    describe_model("folder", "folder/config.json",
                   R"({"model_type": "own", "a": 8, "b": 2, "c": "gelu", "d": true, "e": 0.5,
                       "f": {"rope_type": "linear", "factor": 2}, "g": ["x", "y"], "h": null})",
                   own);
  });
}

}  // namespace

namespace {

std::string with_hash(std::string text) {
  text.resize(std::min(text.size(), text.rfind("hash ")));
  return text + fmt::format("hash {:016x}\n", hash_of(text));
}

/// The hash, which any change breaks, is renewed. What can be read is the same when it is read
/// again.
void program(const std::string& text) {
  answer([&] {
    const std::string written = write_program(read_program(with_hash(text)));
    if (write_program(read_program(written)) != written) std::abort();
  });
}

std::vector<std::string> program_seeds() {
  const std::string head =
      "program 2\nmesh data:2 pipe:2\narenas persistent=64 transient=64 offloaded=0\n"
      "scalar step\nscalar \"a b\"\nbuffer x persistent 0+64\nbuffer x~2 transient 0+64\n"
      "buffer \"odd \\\"\" transient 0+64 twice\nport x x:float32[4,4]/[4,1] rows=8@data "
      "cols=4<s1\n"
      "stored 0\n";
  return {
      with_hash(head +
                "function train inputs=[0] outputs=[0] updates first_update=1\n"
                "  x~2:float32[4,4]/[4,1] = pointwise(x:float32[4,4]/[4,1]+4+{0+4*c0}) "
                "{r0:float32=load(#0); r1:float32=constant(0.5); r2:float32=mask(r0,#1,e0,-1) -> "
                "r2} e0=clamp(3+-4*c0+1*s1,0,4) workspace=x  # flops=16 unused=[1] | \"x\" | "
                "\"m.cpp:1\" | \"\"\n"
                "  x:float32[4,4]/[4,1] = exchange #3 over data pipe sum(x~2:float32[4,4]/[4,1]) "
                "from=[[0],[]] intervals=[[0,5,8,1]] sizes=[8,4] to=[[],[1]] max_bytes=9 "
                "e0=((1+2*c1)/2)%3\n"
                "  wait #3\n"),
      with_hash(
          head +
          "init init\n"
          "  x:float32[4,4]/[4,1] = loop 4 iterations, s1 down from 0+2*c1 below 3 along pipe "
          "forward in 5 ticks s0 sends 1 [0+4@0/1; 0+2@1/2](x~2:float32[4,4]/[4,1])\n"
          "    body layers outer=[0,1] overlaps early=1\n"
          "      x:float32[4,4,4]/[4,1,0] = matmul(x:float32[4,1,4]/[4,0,1], "
          "x~2:float32[1,4,4]/[0,1,4]) kinds=[row,column,sum] e0=[1 2 3][0+1*c0]\n"
          "      x:float32[4,4]/[4,1] = host own.op[rows=4,cols=4]() a:3 b:0.5 c:\"t\" "
          "d:[1,2] e:[]s\n")};
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
      {"model",
       model,
       {R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 9, "vocab_size": 7,)"
        R"("num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,)"
        R"("max_position_embeddings": 16, "rms_norm_eps": 1e-5, "rope_theta": 1e4,)"
        R"("rope_scaling": {"type": "yarn", "factor": 2.0}})",
        R"({"model_type": "gemma3_text", "hidden_size": 8, "intermediate_size": 9, "head_dim": 4,)"
        R"("vocab_size": 7, "num_hidden_layers": 3, "sliding_window": 5,)"
        R"("rope_parameters": {"sliding_attention": {}}, "layer_types": ["full_attention",)"
        R"("sliding_attention", "full_attention"]})",
        R"({"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 4,)"
        R"("vocab_size": 7, "n_inner": null})"},
       {"qwen2", "qwen3_moe", "mixtral", "\"num_experts\"", "null", "-1", "0", "1e300", "[]", "{}",
        "9223372036854775807", "\"dtype\"", "\"layer_types\"", "true", "\"rope_type\""}},
      {"family",
       family,
       {"model_type = \"own\"\n[options]\nvocab = {key = \"a\"}\nd_model = 8\nlayers = {key = "
        "\"b\"}\n"
        "length = {option = \"vocab\", times = 2}\nheads.count = {key = \"h\", default = 2}\nmlp = "
        "{ff = "
        "{key = \"a\", power = 2}, activation = {key = \"c\"}, gated = {key = \"d\"}}\nnorm.eps = "
        "{key = "
        "\"e\"}\nrotary.parameters = {key = \"f\"}\nwindow = 3\nlayers_with_window = {key = \"g\", "
        "values = "
        "{x = true, y = false}}\n[tensors]\n\"w{layer}\" = [{is = \"block.mlp.up.w\", dims = "
        "\"0/2*ff, "
        "d_model\"}, {is = \"head.w\", dims = \"vocab, d_model\", or_copy_of = \"embedding\"}]\n"},
       {"[options]", "[tensors]", "[config]", "ignored", "fixed", "{key = ", "{option = ",
        "default",   "values",    "power",    "times",   "-1",    "0",       "1e300",
        "inf",       "nan",       "\"a\"",    "true",    "[]",    "{}"}},
      {"tokenizer",
       tokenizer,
       tokenizer_seeds(),
       {"-1", "4194303", "{}", "[]", "null", "\\p{L}", "(?=", "\"type\":\"NFC\"", "true"}},
      {"chat_template",
       chat_template,
       {"{{ bos_token }}{% for m in messages %}{% if loop.first and m['role'] == 'system' %}{{- "
        "m.content | trim ~ '\\n' -}}{% elif not loop.last %}{{ m.role + ': ' + m['content'] }}{% "
        "else %}x{% endif %}{% endfor %}",
        "{% set ns = namespace(n=0) %}{% for m in messages[1:] %}{% set ns.n = ns.n + 1 % 3 "
        "%}{# c #}\n  {% endfor %}{{ ns.n if ns.n is defined else [1, 'a'] | length }}"},
       {"{{", "}}", "{%", "%}", "{#", "-%}", "raise_exception(", "in", "is not none", "[::-1]",
        "9223372036854775807", "//", "default(", ".startswith(", "endif", "((((", "true"}},
      {"machine",
       machine,
       profiles(),
       {"[[link]]", "[[sample]]", "measured", "= []", "[[1, 2], [3, 4]]", "inf", "nan", "-1",
        "1e300", "9223372036854775807", "\"\\u0001\"", "'\\'", "= true", "residuals"}},
      {"report",
       report,
       logs(),
       {"\"step\":", "\"loss\":", "\"time_line\":", "\"profile\":", "\"memory\":", "[[\"a\",",
        "null", "1e308", "-1e308", "1e17", "9223372036854775807", "1e-320", "\\u0000", "\xff",
        "[[[["}},
      {"plan_cache",
       kept_plans,
       {cli::plans_file(kQuestion,
                        {{"batch:data;heads,ff:model", {"train.microbatches=2"}},
                         {"batch:data+model", {"train.recompute=block", "train.microbatches=1"}}}),
        cli::plans_file(kQuestion, {{"", {}}})},
       {"\"layout\":", "\"sets\":", "[]", "null", "auto", "train.recompute=", "batch:elsewhere",
        "\\u001b", "[[[["}},
      {"algorithm",
       algorithm,
       {text_of_gemm_choice(kProblem, "1 00112233445566778899aabbccddeeff"),
        text_of_gemm_choice(kProblem, "0 a"), text_of_gemm_choice("9x9", "0 a")},
       {"tessera-product 2\n", "18446744073709551615", "\n", "8x8x8"}},
      {"images",
       images,
       {idx_pair(), zipped_pair()},
       {std::string("\0\0\x08\x03", 4), "\xff\xff\xff\xff"}},
      {"program",
       program,
       program_seeds(),
       {"9223372036854775807", "-1", "[]", "[[0],[]]", "kinds=[sum]", "+{0+1*c0}", "clamp(", "((",
        " = conv(", " = attention(", " = gather(", "    body b\n", "r1:bool=", "@data", "~2"}}};
  return targets;
}

}  // namespace tessera::test
