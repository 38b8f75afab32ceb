// Chat templates: what transformers makes of them, and what is refused.
#include "tessera/chat_template.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/expect_error.h"
#include "support/io_folder.h"

namespace tessera::test {
namespace TESSERA_FILE {

using Messages = std::vector<ChatTemplate::Message>;

const Messages kTalk = {
    {"system", "Be brief."}, {"user", " Hi "}, {"assistant", "Hello!"}, {"user", "Bye"}};

std::string rendered(const std::string& text, const Messages& messages = kTalk,
                     bool prompt = false) {
  return ChatTemplate(text, "<s>", "</s>").render(messages, prompt);
}

/// What a template of one expression writes.
std::string value(const std::string& expression) { return rendered("{{ " + expression + " }}"); }

TEST_CASE("templates of SmolLM2, Llama 3, Mistral and Zephyr", "[chat_template]") {
  const std::string smol =
      "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
      "'<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
      "Face<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + "
      "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
      "'<|im_start|>assistant\\n' }}{% endif %}";
  CHECK(rendered(smol, kTalk, true) ==
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n");
  CHECK(rendered(smol, {{"user", "Hi"}}) ==
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
        "Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n");
  const std::string llama3 =
      "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
      "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | "
      "trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% "
      "endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ "
      "'<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";
  CHECK(rendered(llama3, {{"user", " Hi "}}, true) ==
        "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n");
  const std::string mistral =
      "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != "
      "(loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate "
      "user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}{{ "
      "'[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ "
      "message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles "
      "are supported!') }}{% endif %}{% endfor %}";
  CHECK(rendered(mistral, {{"user", "Hi"}, {"assistant", "Hello"}}) ==
        "<s>[INST] Hi [/INST]Hello</s>");
  expect_usage({"[chat template] Conversation roles must alternate"}, [&] {
    rendered(mistral, {{"assistant", "Hi"}});
  });
  const std::string zephyr =
      "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + "
      "message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n{{ "
      "'<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' "
      "%}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if loop.last "
      "and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}";
  CHECK(rendered(zephyr, {{"system", "S"}, {"user", "U"}}, true) ==
        "<|system|>\nS</s>\n<|user|>\nU</s>\n<|assistant|>\n");
}

Messages messages_of(const nlohmann::json& list) {
  Messages all;
  for (const nlohmann::json& m : list) all.push_back({m["role"], m["content"]});
  return all;
}

nlohmann::json fixture(const char* name) {
  std::ifstream in(std::string(TESSERA_SOURCE_DIR "/tests/tokenizer/fixtures/") + name);
  return nlohmann::json::parse(in);
}

/// What a row of the fixtures says: a text, or any error.
void check_row(const std::string& text, const nlohmann::json& messages, bool prompt,
               const nlohmann::json& row) {
  std::string got, error;
  try {
    got = ChatTemplate(text, "<s>", "</s>").render(messages_of(messages), prompt);
  } catch (const Error& e) {
    error = e.what();
  }
  INFO(error);
  CHECK(error.empty() == row.contains("text"));
  if (error.empty()) CHECK(got == row.value("text", ""));
}

// fixtures/jinja.json, made by benchmarks/peers/tokenizers/make_jinja.py.
TEST_CASE("templates are rendered as in transformers' environment", "[chat_template]") {
  const nlohmann::json file = fixture("jinja.json");
  for (const nlohmann::json& row : file["rows"]) {
    INFO(row.dump());
    check_row(row["template"], file["messages"], false, row);
  }
}

// fixtures/chat_templates.json, from benchmarks/peers/tokenizers/chat_templates.py.
TEST_CASE("templates of twenty families of chat models", "[chat_template]") {
  const nlohmann::json models = fixture("chat_templates.json");
  CHECK(models.size() >= 20);
  for (const nlohmann::json& model : models) {
    for (const nlohmann::json& row : model["rows"]) {
      INFO(model["name"] << " " << row.dump());
      check_row(model["template"], row["messages"], row["prompt"], row);
    }
  }
}

TEST_CASE("parts for tools that are not reached may be of any kind", "[chat_template]") {
  CHECK(rendered("{%- if tools is defined and tools %}{{ tools | tojson(indent=4) }}{%- endif -%}\n"
                 "{%- for m in messages[1:] -%}\n    {{- m.role ~ ';' }}\n{%- endfor %}") ==
        "user;assistant;user;");
}

TEST_CASE("filters, methods and parts of loops that published templates use", "[chat_template]") {
  // Right values: jinja2 3.1.
  const auto of = [](const std::string& what) { return rendered("{{ " + what + " }}"); };
  CHECK(of("'  a b '.lstrip() ~ '|' ~ '  a b '.rstrip() ~ '|'") == "a b |  a b|");
  CHECK(of("'\\n\\nab\\n'.lstrip('\\n') ~ '|'") == "ab\n|");
  CHECK(of("'xxaxx'.strip('x') ~ 'xx'.strip('x') ~ 'xxa'.rstrip('x')") == "axxa");
  CHECK(of("'banana'.replace('an', 'x') ~ ('aa' | replace('a', 'b'))") == "bxxabb");
  CHECK(of("'a</t>b</t>c'.split('</t>')[-1]") == "c");
  CHECK(of("'a,b,c'.split(',', 1) | join('|')") == "a|b,c");
  CHECK(of("'a,'.split(',') | tojson") == R"(["a", ""])");
  CHECK(of("['a', 1, true, none] | tojson") == R"(["a", 1, true, null])");
  CHECK(of("'q\"é' | tojson") == "\"q\\\"\xC3\xA9\"");
  CHECK(of("range(3) | join ~ (range(2, 4) | join(','))") == "0122,3");
  CHECK(of("['a', 'b'] | first ~ ('xyz' | last) ~ (5 | string)") == "az5");
  CHECK(rendered("{% for m in range(3) %}{{ loop.revindex }}{% if loop.previtem is defined %}<{{ "
                 "loop.previtem }}{% endif %}{% if loop.nextitem is defined %}>{{ loop.nextitem "
                 "}}{% endif %};{% endfor %}") == "3>1;2<0>2;1<1;");
  CHECK(rendered("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration "
                 "%}{% endfor %}",
                 {{"r", "a"}, {"r", "b"}}) == "ab");
  expect_usage({"[chat template] range(0, 100000)"}, [&] { of("range(100000)"); });
  expect_usage({"[chat template] split at an empty text"}, [&] { of("'a'.split('')"); });
}

TEST_CASE("texts are counted in characters, as Python counts them", "[chat_template]") {
  const std::vector<ChatTemplate::Message> one = {{"r", "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z"}};
  const auto of = [&](const std::string& what) {
    return rendered("{% set t = messages[0].content %}{{ " + what + " }}", one);
  };
  CHECK(of("t | length") == "5");
  CHECK(of("t[0] ~ t[-1]") == "az");
  CHECK(of("t[1]") == "\xC3\xA9");
  CHECK(of("t[1:3]") == "\xC3\xA9\xE2\x82\xAC");
  CHECK(of("t[-2:]") == "\xF0\x9F\x98\x80z");
  CHECK(of("t[:2][::-1]") ==
        "\xC3\xA9"
        "a");
  CHECK(of("'x' if t[5] is defined else 'none'") == "none");
}

TEST_CASE("blanks around statements", "[chat_template]") {
  CHECK(rendered("a\n  {% if true %}\nb\n  {% endif %}\nc\n") == "a\nb\nc");
  CHECK(rendered("a  {%- if true -%}  b  {%- endif -%}  c") == "abc");
  CHECK(rendered("a {%+ if true +%}\nb{% endif %}") == "a \nb");
  CHECK(rendered("a\n  {# not here #}\nb {{ 1 }}\nc") == "a\nb 1\nc");
}

TEST_CASE("expressions", "[chat_template]") {
  CHECK(value("strftime_now('%Y-%m-%d') | length") == "10");
  CHECK(value("strftime_now('%Y') | int > 2025") == "True");
  CHECK(value("1 + 2 * 3 - 4 // 3 % 2") == "6");
  CHECK(value("-7 % 3") == "2");
  CHECK(value("'a' ~ 1 ~ true ~ none") == "a1TrueNone");
  CHECK(value("'yes' if 'b' in 'abc' and not false else 'no'") == "yes");
  CHECK(value("'x' if 1 > 2") == "");
  CHECK(value("messages[-1].content.strip()") == "Bye");
  CHECK(value("messages[1]['content'] | trim | upper") == "HI");
  CHECK(value("messages | length") == "4");
  CHECK(value("messages[1:3] | length") == "2");
  CHECK(value("messages[::-1][0]['content']") == "Bye");
  CHECK(value("'abc'[1:]") == "bc");
  CHECK(value("nothing | default('x')") == "x");
  CHECK(value("nothing is defined") == "False");
  CHECK(value("nothing is not none") == "True");
  CHECK(value("'user' not in ['user', 'tool']") == "False");
  CHECK(value("'abc'.startswith('ab')") == "True");
  CHECK(value("'a\\'b\"' == \"a'b\\\"\"") == "True");
  CHECK(rendered("{% set ns = namespace(n=0, s='') %}{% for m in messages %}{% set ns.n = ns.n + 1 "
                 "%}{% set x = 5 %}{% endfor %}{{ ns.n }}{{ x }}") == "4");
}

TEST_CASE("whole numbers: Python's, or refused where they do not fit", "[chat_template]") {
  // -2^63 cannot be written: a sign is an operator, and 2^63 does not fit.
  const int64_t most = std::numeric_limits<int64_t>::max();
  const std::vector<int64_t> edges{-most, -most + 1, -8, -3, -1, 0, 1, 2, 3, 8, most - 1, most};
  for (const int64_t x : edges) {
    for (const int64_t y : edges) {
      for (const std::string op : {"+", "-", "*", "//", "%"}) {
        const bool divides = op == "//" || op == "%";
        const std::string text = fmt::format("({}) {} ({})", x, op, y);
        INFO(text);
        if (divides && y <= 0) {
          expect_error(ErrorKind::usage, {fmt::format("{} {} {}", x, op, y)}, [&] { value(text); });
          continue;
        }
        __int128 expected = op == "+"   ? __int128{x} + y
                            : op == "-" ? __int128{x} - y
                                        : __int128{x} * y;
        if (divides) {
          expected = (__int128{x} % y + y) % y;
          if (op == "//") expected = (x - expected) / y;
        }
        if (expected > most || expected < -__int128{most} - 1)
          expect_error(ErrorKind::usage, {"is too large"}, [&] { value(text); });
        else
          CHECK(value(text) == fmt::format("{}", static_cast<int64_t>(expected)));
      }
    }
  }
}

TEST_CASE("templates that are refused", "[chat_template][errors]") {
  struct Case {
    ErrorKind kind;
    const char *text, *message;
  };
  for (const Case& c :
       {Case{ErrorKind::unsupported, "{% include 'x' %}", "the statement 'include'"},
        Case{ErrorKind::unsupported, "{{ lipsum() }}", "the function 'lipsum'"},
        Case{ErrorKind::unsupported, "{% for m in messages recursive %}{% endfor %}",
             "a recursive loop"},
        Case{ErrorKind::unsupported, "{{ f(*messages) }}", "arguments from a list"},
        Case{ErrorKind::unsupported, "{{ 'a' | urlize }}", "the filter 'urlize'"},
        Case{ErrorKind::unsupported, "{{ 'a'.casefold() }}", "the method 'casefold' of string"},
        Case{ErrorKind::unsupported, "{{ 1 is callable }}", "the test 'callable'"},
        Case{ErrorKind::unsupported, "{{ '\\q' }}", "the escape '\\q'"},
        Case{ErrorKind::unsupported, "{{ '\\xg1' }}", "the escape '\\x' with 'g1'"},
        Case{ErrorKind::unsupported, "{{ '\xC3\xA9' | upper }}", "'upper' of letters beyond ASCII"},
        Case{ErrorKind::unsupported, "{{ '{:>3}'.format(1) }}", "format() with ':>3'"},
        Case{ErrorKind::unsupported, "{{ '%5d' % 1 }}", "the format '%5'"},
        Case{ErrorKind::unsupported, "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
             "nesting of more than 64 levels"},
        Case{ErrorKind::usage, "{% macro f(x) %}{% endmacro %}{{ f(1, 2) }}",
             "f() has 1 arguments, not 2"},
        Case{ErrorKind::usage, "{% macro f(x) %}{% endmacro %}{{ f(y=2) }}",
             "f() has no argument 'y'"},
        Case{ErrorKind::usage, "{{ 'a' | replace(1, 'b') }}", "'old' is number, not a text"},
        Case{ErrorKind::usage, "{{ 1 is divisibleby }}", "has 1 arguments, not 0"},
        Case{ErrorKind::usage, "{% set a, b = [1] %}", "2 names for 1 values"},
        Case{ErrorKind::io, "{% break %}", "line 1: 'break' outside of a loop"},
        Case{ErrorKind::io, "a\n{% raw %}", "line 2: 'endraw' is missing"},
        Case{ErrorKind::io, "a\n{% if true %}", "line 2: 'endif' is missing"},
        Case{ErrorKind::io, "{% endfor %}", "line 1: 'endfor' has no beginning"},
        Case{ErrorKind::io, "a\nb {{ 1", "line 2: '{{' is not closed"},
        Case{ErrorKind::io, "{{ 'a }}", "line 1: '{{' is not closed"},
        Case{ErrorKind::io, "{{ 1 1 }}", "the statement should end at '1'"},
        Case{ErrorKind::io, "{{ }}", "an expression is missing"},
        Case{ErrorKind::usage, "{{ 1 + 'a' }}", "[chat template] number + string"},
        Case{ErrorKind::usage, "{{ nothing.more }}", "an element of what is undefined"},
        Case{ErrorKind::usage, "{% for m in 5 %}{% endfor %}", "a loop over number"},
        Case{ErrorKind::usage, "{% set a.b = 1 %}", "'a' is no namespace()"},
        Case{ErrorKind::usage, "{{ 9223372036854775807 + 1 }}", "is too large"},
        Case{ErrorKind::usage,
             "{% set ns = namespace(x='0123456789abcdef') %}{% for m in messages %}{% for n in "
             "messages %}{% for o in messages %}{% set ns.x = ns.x + ns.x %}{% endfor %}{% endfor "
             "%}{% endfor %}",
             "a text has more than 67108864 bytes"}}) {
    INFO(c.text);
    expect_error(c.kind, {c.message}, [&] { rendered(c.text); });
  }
  const std::string deep = std::string(200, '(') + std::string(200, ')');
  expect_error(ErrorKind::unsupported, {"nesting of more than 64 levels"},
               [&] { rendered("{{ " + deep + " }}"); });
  std::string sum = "1", chain = "messages";
  for (int i = 0; i < 2000; ++i) sum += "+1", chain += ".x";
  for (const std::string& each : {sum, chain})
    expect_error(ErrorKind::unsupported, {"an expression of more than 1000 operators"},
                 [&] { rendered("{{ " + each + " }}"); });
  std::string ifs;
  for (int i = 0; i < 2000; ++i) ifs += "{% if true %}{% endif %}";
  expect_error(ErrorKind::usage, {"it runs 10000000 statements, and does not end"}, [&] {
    rendered("{% for a in range(99) %}{% for b in range(99) %}" + ifs + "{% endfor %}{% endfor %}");
  });
  std::string blocks;
  for (int i = 0; i < 200; ++i) blocks += "{% if true %}";
  expect_error(ErrorKind::unsupported, {"nesting of more than 64 levels"},
               [&] { rendered(blocks); });
}

TEST_CASE("the template of a folder", "[chat_template]") {
  const Folder f;
  CHECK(f.error([&] { ChatTemplate::load(f.dir); })
            .find("io [chat template] 'DIR' has none: neither chat_template.jinja nor a "
                  "chat_template") == 0);
  f.write("tokenizer_config.json",
          R"({"bos_token": {"content": "<b>"}, "eos_token": "<e>",
              "chat_template": [{"name": "tool_use", "template": "no"},
                                {"name": "default", "template": "{{ bos_token + eos_token + pad_token }}"}],
              "pad_token": "<p>"})");
  CHECK(ChatTemplate::load(f.dir).render({}) == "<b><e><p>");
  f.write("chat_template.jinja", "{{ messages[0].content }}{{ bos_token }}\n");
  CHECK(ChatTemplate::load(f.dir).render(kTalk) == "Be brief.<b>");
  f.write("chat_template.jinja", "{% include %}");
  CHECK(f.error([&] { ChatTemplate::load(f.dir); })
            .find("unsupported 'DIR/chat_template.jinja': [chat template] the statement 'include' "
                  "is not "
                  "understood") == 0);
  f.write("tokenizer_config.json", "[");
  CHECK(f.error([&] {
           ChatTemplate::load(f.dir);
         }).starts_with("io [tokenizer] 'DIR/tokenizer_config.json' is not JSON: line 1"));
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
