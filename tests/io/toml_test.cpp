// What toml++ does not survive is refused in front of it; everything else that is TOML is read.
#include "base/toml.h"

#include "base/toml_text.h"
#include "support/catch.h"
#include "tessera/error.h"

using namespace tessera;

namespace TESSERA_FILE {

/// The string "x" of a text, or the error.
std::string read(const std::string& text) {
  try {
    return parse_toml(text, "run.toml")["x"].value_or<std::string>("no x");
  } catch (const Error& e) {
    return e.what();
  }
}

TEST_CASE("toml: letters that are not ASCII stand in quotes and comments") {
  const std::string e = "\xc3\xa9";
  CHECK(read("x = \"" + e + "\" # " + e) == e);
  CHECK(read("\"" + e + "\" = 1\nx = '''\n" + e + "\n'''") == e + "\n");
  CHECK(read("x = \"\"\"a\\\n" + e + "\"\"\"") == "a" + e);
  CHECK(read("\xef\xbb\xbfx = 'after a mark'") == "after a mark");
  for (const std::string& text : {"x = " + e, e + " = 1", "[" + e + "]", "x = 1" + e, "x = -\"" + e,
                                  "x = 1.\"" + e + "\"", std::string("x = 1\xc2\xa0")}) {
    INFO(text);
    const std::string answer = read("y = 1\n" + text);
    CHECK(answer.starts_with("run.toml: "));
    CHECK(answer.ends_with("(line 2)"));
  }
}

TEST_CASE("toml: what the library asserts is refused") {
  for (const char* text :
       {"[=]", "[[.]]", "[ +a]\nx = 1", "x = [}]", "x = [1979-05-27 0]", "x = [1, }",
        "x = [[1, 2],}}}", "x = \"\\", "x = '''", "x = {a = 1, , }", "[]", "x = "}) {
    INFO(text);
    const std::string answer = read(text);
    INFO(answer);
    CHECK(answer.starts_with("run.toml: "));
    CHECK(answer.ends_with("(line 1)"));
  }
}

TEST_CASE("toml: keys and texts have a size") {
  const std::string deep = "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p";
  CHECK(read("x = 'here'\n" + deep + " = 1") == "here");
  std::string numbers = "1.5";
  for (int i = 0; i < 40; ++i) numbers += ", 2.5";
  CHECK(read("x = 'here'\ny = [" + numbers + "]") == "here");
  CHECK(
      read("x = \"\"\"a\"\"b.........\"\"\"\"\"\n# ........... and '.......\ny = '...........'") ==
      "a\"\"b.........\"\"");
  CHECK(read("[t]\n" + deep + ".q = 1") ==
        "run.toml: line 2: a key of more than 16 parts (a.b.c has three); take a "
        "shorter one");
  std::string nested = "a";
  for (int i = 0; i < 100000; ++i) nested += ".'a'";
  CHECK(read(nested + " = 1").find("a key of more than 16 parts") != std::string::npos);
  CHECK(read("x = " + std::string(100000, '[')).find("nested value depth") != std::string::npos);
  CHECK(read(std::string(1 << 20, '\n')) == "no x");
  CHECK(read(std::string((1 << 20) + 1, '\n')) ==
        "run.toml: 1048577 bytes; TOML is read up to 1048576; is it another file?");
}

}  // namespace TESSERA_FILE
